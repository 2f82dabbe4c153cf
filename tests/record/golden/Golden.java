// Writes java.json: keys, buckets and partition names as the Java code of Apache Fluss makes them.
//
// Not run by the tests. With the server's jar (0.9.1-incubating for the file here):
//
//   java -cp fluss-server-0.9.1-incubating.jar tests/record/golden/Golden.java > java.json

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.fluss.bucketing.BucketingFunction;
import org.apache.fluss.metadata.DataLakeFormat;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.row.encode.KeyEncoder;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.PartitionUtils;
import org.apache.fluss.utils.json.DataTypeJsonSerde;
import org.apache.fluss.utils.json.JsonSerdeUtils;

public class Golden {
    static final int BUCKETS = 16;
    static final List<String> LINES = new ArrayList<>();

    static String hex(byte[] bytes) {
        StringBuilder s = new StringBuilder();
        for (byte b : bytes) {
            s.append(String.format("%02x", b));
        }
        return s.toString();
    }

    static String json(DataType t) {
        return new String(
                JsonSerdeUtils.writeValueAsBytes(t, DataTypeJsonSerde.INSTANCE),
                StandardCharsets.UTF_8);
    }

    static String quote(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c < 32 || c > 126 || c == '"' || c == '\\') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    static void add(DataType[] types, String[] texts, Object[] values) {
        String[] names = new String[types.length];
        StringBuilder typeJson = new StringBuilder();
        StringBuilder valueJson = new StringBuilder();
        GenericRow row = new GenericRow(types.length);
        for (int i = 0; i < types.length; i++) {
            names[i] = "k" + i;
            types[i] = types[i].copy(false);
            row.setField(i, values[i]);
            typeJson.append(i == 0 ? "" : ", ").append(json(types[i]));
            valueJson.append(i == 0 ? "" : ", ").append(quote(texts[i]));
        }
        RowType rowType = RowType.of(types, names);
        StringBuilder line = new StringBuilder();
        line.append("{\"types\": [").append(typeJson).append("], \"values\": [").append(valueJson);
        line.append("]");
        DataLakeFormat[] lakes = {null, DataLakeFormat.PAIMON, DataLakeFormat.ICEBERG};
        for (DataLakeFormat lake : lakes) {
            String name = lake == null ? "fluss" : lake.toString();
            try {
                byte[] key = KeyEncoder.of(rowType, Arrays.asList(names), lake).encodeKey(row);
                int bucket = BucketingFunction.of(lake).bucketing(key, BUCKETS);
                line.append(String.format(", \"%s\": [\"%s\", %d]", name, hex(key), bucket));
            } catch (IllegalArgumentException e) {
                line.append(String.format(", \"%s\": null", name));
            }
        }
        if (types.length == 1) {
            String partition;
            try {
                partition =
                        quote(PartitionUtils.convertValueOfType(values[0], types[0].getTypeRoot()));
            } catch (IllegalArgumentException e) {
                partition = "null";
            }
            line.append(", \"partition\": ").append(partition);
        }
        LINES.add(line.append("}").toString());
    }

    static void one(DataType t, String text, Object value) {
        add(new DataType[] {t}, new String[] {text}, new Object[] {value});
    }

    public static void main(String[] args) {
        one(DataTypes.BOOLEAN(), "true", true);
        one(DataTypes.BOOLEAN(), "false", false);
        for (int v : new int[] {0, 1, -1, 127, -128, 42, -100}) {
            one(DataTypes.TINYINT(), "" + v, (byte) v);
        }
        for (int v : new int[] {0, 1, -1, 32767, -32768, 300, 128, 200}) {
            one(DataTypes.SMALLINT(), "" + v, (short) v);
        }
        int[] ints = {
            0, 1, -1, 127, 128, 255, 256, 16383, 16384, 2097151, 2097152, 268435455, 268435456,
            Integer.MAX_VALUE, Integer.MIN_VALUE, 123456, -7
        };
        for (int v : ints) {
            one(DataTypes.INT(), "" + v, v);
        }
        long[] longs = {
            0L, 1L, -1L, 127L, 128L, 16384L, 1L << 35, (1L << 35) - 1, 1L << 42, 1L << 49,
            1L << 56, (1L << 56) - 1, 1L << 62, Long.MAX_VALUE, Long.MIN_VALUE, 98765432100L, -300L
        };
        for (long v : longs) {
            one(DataTypes.BIGINT(), "" + v, v);
        }
        float[] floats = {
            0f, -0f, 1.5f, -2.25f, 3e30f, 5.73f, 1e10f, -0.0001f, 123456f, 1e-3f, 9.999e-4f,
            16777216f, 9999999f, 1e7f, 100f, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY,
            Float.NaN, 1.1754944E-38f
        };
        for (float v : floats) {
            one(DataTypes.FLOAT(), "" + v, v);
        }
        double[] doubles = {
            0, -0.0, 1.5, -2.25, 1e300, 0.1, 5.73, 1e7, 9999999.0, 12345678.9, 1e-3, 9.99e-4,
            100.0, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, Double.NaN, 1e21, 1e-10
        };
        for (double v : doubles) {
            one(DataTypes.DOUBLE(), "" + v, v);
        }
        String[] strings = {
            "a", "ab", "abc", "abcd", "hello", "1234567", "12345678", "123456789", "\u00e9\u20ac",
            "\ud834\udd1e", "na\u00efve caf\u00e9", "2bb87d68-baf9-4e64-90f9-f80910419fa6",
            "The quick brown fox jumps over the lazy dog", "eu-west_1",
            new String(new char[300]).replace('\0', 'x')
        };
        for (String v : strings) {
            one(DataTypes.STRING(), v, BinaryString.fromString(v));
        }
        one(DataTypes.CHAR(8), "abc", BinaryString.fromString("abc"));
        byte[][] blobs = {
            {97}, {(byte) 255, (byte) 128}, {0, 10}, {0, 10, 10, 10}, {1, 2, 3, 4, 5, 6, 7},
            {1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 0, 0, 0, 0, 0, 0, (byte) 200}, {(byte) 0x10, (byte) 0xff}
        };
        for (byte[] v : blobs) {
            one(DataTypes.BYTES(), hex(v), v);
            one(DataTypes.BINARY(v.length), hex(v), v);
        }
        for (String v : new String[] {"0.00", "1.23", "-1.23", "99999999.99", "-0.01"}) {
            one(
                    DataTypes.DECIMAL(10, 2),
                    v,
                    Decimal.fromBigDecimal(new BigDecimal(v), 10, 2));
        }
        String[] large = {
            "0.0000", "0.0127", "0.0128", "-0.0128", "-0.0129", "0.0255", "0.0256", "3.2767",
            "3.2768", "-3.2768", "-3.2769", "1000000000000000000000000000000.0000",
            "-1000000000000000000000000000000.0000"
        };
        for (String v : large) {
            one(
                    DataTypes.DECIMAL(38, 4),
                    v,
                    Decimal.fromBigDecimal(new BigDecimal(v), 38, 4));
        }
        for (int v : new int[] {0, 20235, -1, -25168, 100000, 2932896}) {
            one(DataTypes.DATE(), "" + v, v);
        }
        for (int v : new int[] {0, 45296789, 5402199, 86399999}) {
            one(DataTypes.TIME(3), "" + v, v);
        }
        for (int v : new int[] {0, 45296000}) {
            one(DataTypes.TIME(0), "" + v, v);
        }
        one(DataTypes.TIME(6), "45296789", 45296789);
        one(DataTypes.TIME(9), "45296789", 45296789);
        long[][] times = {
            {0, 0}, {1748662955428L, 99988}, {1748662955428L, 0}, {1748662955000L, 99988},
            {1748662955000L, 0}, {-1, 999999}, {-86400001L, 0}, {1748662955100L, 0}
        };
        for (long[] v : times) {
            String text = v[0] + "," + v[1];
            for (int precision : new int[] {3, 6, 9}) {
                int nanos = (int) (precision == 3 ? 0 : precision == 6 ? v[1] / 1000 * 1000 : v[1]);
                String shown = v[0] + "," + nanos;
                one(
                        DataTypes.TIMESTAMP(precision),
                        shown,
                        TimestampNtz.fromMillis(v[0], nanos));
                one(
                        DataTypes.TIMESTAMP_LTZ(precision),
                        shown,
                        TimestampLtz.fromEpochMillis(v[0], nanos));
            }
        }
        one(DataTypes.TIMESTAMP(0), "1748662955000,0", TimestampNtz.fromMillis(1748662955000L));
        for (int i = 0; i < 6; i++) {
            String name = new String(new char[i * 3]).replace('\0', 'n');
            BigDecimal amount = new BigDecimal("12345678901234567890123.4500").movePointLeft(i * 4);
            Decimal decimal =
                    Decimal.fromBigDecimal(
                            amount.setScale(4, java.math.RoundingMode.DOWN), 38, 4);
            add(
                    new DataType[] {
                        DataTypes.INT(),
                        DataTypes.STRING(),
                        DataTypes.DECIMAL(38, 4),
                        DataTypes.TIMESTAMP(6),
                        DataTypes.BYTES()
                    },
                    new String[] {
                        "" + (i * 100 - 100), name, decimal.toString(), (i * 1000L) + ",7000", "0" + i + "ff"
                    },
                    new Object[] {
                        i * 100 - 100,
                        BinaryString.fromString(name),
                        decimal,
                        TimestampNtz.fromMillis(i * 1000L, 7000),
                        new byte[] {(byte) i, (byte) 255}
                    });
        }
        System.out.println("[\n" + String.join(",\n", LINES) + "\n]");
    }
}
