// Writes java_rows.json: rows of every type as the Java code of Apache Fluss encodes them.
//
// Not run by the tests. With the server's jar (0.9.1-incubating for the file here):
//
//   java -cp fluss-server-0.9.1-incubating.jar tests/record/golden/GoldenRows.java > java_rows.json

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.fluss.metadata.KvFormat;
import org.apache.fluss.row.BinaryRow;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.row.encode.RowEncoder;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypeChecks;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.json.DataTypeJsonSerde;
import org.apache.fluss.utils.json.JsonSerdeUtils;

public class GoldenRows {
    static final int ROWS = 50;
    static final Random CHANCE = new Random(5);
    static final String[] LETTERS = {"a", "z", "0", "\u00e9", "\u20ac", "\ud834\udd1e", " "};

    static final DataType[] TYPES = {
        DataTypes.BOOLEAN(),
        DataTypes.TINYINT(),
        DataTypes.SMALLINT(),
        DataTypes.INT(),
        DataTypes.BIGINT(),
        DataTypes.FLOAT(),
        DataTypes.DOUBLE(),
        DataTypes.STRING(),
        DataTypes.CHAR(9),
        DataTypes.BYTES(),
        DataTypes.BINARY(3),
        DataTypes.BINARY(12),
        DataTypes.DECIMAL(18, 3),
        DataTypes.DECIMAL(38, 9),
        DataTypes.DATE(),
        DataTypes.TIME(3),
        DataTypes.TIMESTAMP(0),
        DataTypes.TIMESTAMP(3),
        DataTypes.TIMESTAMP(6),
        DataTypes.TIMESTAMP_LTZ(3),
        DataTypes.TIMESTAMP_LTZ(9),
        DataTypes.ARRAY(DataTypes.STRING()),
        DataTypes.ARRAY(DataTypes.ARRAY(DataTypes.INT())),
        DataTypes.ARRAY(DataTypes.TIMESTAMP(6)),
        DataTypes.ARRAY(DataTypes.DECIMAL(30, 2)),
        DataTypes.MAP(DataTypes.STRING().copy(false), DataTypes.BIGINT()),
        DataTypes.ROW(
                DataTypes.FIELD("x", DataTypes.INT()),
                DataTypes.FIELD("y", DataTypes.STRING()),
                DataTypes.FIELD("z", DataTypes.BINARY(5)),
                DataTypes.FIELD("w", DataTypes.ARRAY(DataTypes.DOUBLE()))),
    };

    /** A value, and how the file shows it. */
    static final class Shown {
        final Object value;
        final String json;

        Shown(Object value, String json) {
            this.value = value;
            this.json = json;
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder s = new StringBuilder();
        for (byte b : bytes) {
            s.append(String.format("%02x", b));
        }
        return s.toString();
    }

    static Shown text(Object value, Object shown) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : shown.toString().toCharArray()) {
            out.append(c < 32 || c > 126 ? String.format("\\u%04x", (int) c) : "" + c);
        }
        return new Shown(value, out.append('"').toString());
    }

    /** Numbers of every length, and those at the ends. */
    static long number(int bits) {
        int used = CHANCE.nextInt(bits) + 1;
        long value = CHANCE.nextLong() >> (64 - used);
        switch (CHANCE.nextInt(8)) {
            case 0:
                return -1L << (bits - 1);
            case 1:
                return ~(-1L << (bits - 1));
            default:
                return value;
        }
    }

    static String letters(int most) {
        StringBuilder s = new StringBuilder();
        int left = CHANCE.nextInt(most + 1);
        while (left > 0) {
            String next = LETTERS[CHANCE.nextInt(LETTERS.length)];
            left -= next.getBytes(StandardCharsets.UTF_8).length;
            if (left >= 0) {
                s.append(next);
            }
        }
        return s.toString();
    }

    /** Bytes that do not end with a zero, which indexed rows take for filling. */
    static byte[] bytes(int length) {
        byte[] made = new byte[length];
        CHANCE.nextBytes(made);
        if (length > 0 && made[length - 1] == 0) {
            made[length - 1] = 1;
        }
        return made;
    }

    static Shown decimal(int precision, int scale) {
        BigInteger limit = BigInteger.TEN.pow(1 + CHANCE.nextInt(precision));
        BigInteger whole = new BigInteger(128, CHANCE).mod(limit);
        BigDecimal value = new BigDecimal(CHANCE.nextBoolean() ? whole : whole.negate(), scale);
        return text(Decimal.fromBigDecimal(value, precision, scale), value.toPlainString());
    }

    static Shown stamp(DataType t, boolean zoned) {
        int precision = DataTypeChecks.getPrecision(t);
        long millis = CHANCE.nextLong() >> 22;
        millis = precision == 0 ? millis / 1000 * 1000 : millis;
        int nanos = precision <= 3 ? 0 : CHANCE.nextInt(1000000);
        nanos = precision == 6 ? nanos / 1000 * 1000 : nanos;
        Object value =
                zoned
                        ? TimestampLtz.fromEpochMillis(millis, nanos)
                        : TimestampNtz.fromMillis(millis, nanos);
        return text(value, millis + "," + nanos);
    }

    static Shown random(DataType t, boolean nullable) {
        if (nullable && CHANCE.nextInt(4) == 0) {
            return new Shown(null, "null");
        }
        switch (t.getTypeRoot()) {
            case BOOLEAN:
                boolean flag = CHANCE.nextBoolean();
                return text(flag, flag);
            case TINYINT:
                byte tiny = (byte) number(8);
                return text(tiny, tiny);
            case SMALLINT:
                short small = (short) number(16);
                return text(small, small);
            case INTEGER:
                int integer = (int) number(32);
                return text(integer, integer);
            case BIGINT:
                long big = number(64);
                return text(big, big);
            case FLOAT:
                float single = (float) CHANCE.nextGaussian() * 1e6f;
                return text(single, single);
            case DOUBLE:
                double real = CHANCE.nextGaussian() * 1e12;
                return text(real, real);
            case STRING:
                String string = letters(40);
                return text(BinaryString.fromString(string), string);
            case CHAR:
                String fixed = letters(9);
                return text(BinaryString.fromString(fixed), fixed);
            case BYTES:
                byte[] raw = bytes(CHANCE.nextInt(40));
                return text(raw, hex(raw));
            case BINARY:
                byte[] exact = bytes(DataTypeChecks.getLength(t));
                return text(exact, hex(exact));
            case DECIMAL:
                return decimal(DataTypeChecks.getPrecision(t), DataTypeChecks.getScale(t));
            case DATE:
                int day = CHANCE.nextInt(200000) - 100000;
                return text(day, day);
            case TIME_WITHOUT_TIME_ZONE:
                int time = CHANCE.nextInt(86400000);
                return text(time, time);
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return stamp(t, false);
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return stamp(t, true);
            case ARRAY:
                return array((ArrayType) t);
            case MAP:
                return map((MapType) t);
            default:
                return row((RowType) t);
        }
    }

    static Shown array(ArrayType t) {
        List<Object> values = new ArrayList<>();
        List<String> shown = new ArrayList<>();
        for (int left = CHANCE.nextInt(6); left > 0; left--) {
            Shown made = random(t.getElementType(), true);
            values.add(made.value);
            shown.add(made.json);
        }
        return new Shown(new GenericArray(values.toArray()), "[" + String.join(", ", shown) + "]");
    }

    static Shown map(MapType t) {
        Map<Object, Object> values = new LinkedHashMap<>();
        List<String> shown = new ArrayList<>();
        for (int left = CHANCE.nextInt(5); left > 0; left--) {
            Shown key = random(t.getKeyType(), false);
            Shown value = random(t.getValueType(), true);
            if (values.containsKey(key.value)) {
                continue;
            }
            values.put(key.value, value.value);
            shown.add("[" + key.json + ", " + value.json + "]");
        }
        return new Shown(new GenericMap(values), "[" + String.join(", ", shown) + "]");
    }

    static Shown row(RowType t) {
        GenericRow made = new GenericRow(t.getFieldCount());
        List<String> shown = new ArrayList<>();
        for (int i = 0; i < t.getFieldCount(); i++) {
            Shown field = random(t.getTypeAt(i), true);
            made.setField(i, field.value);
            shown.add(field.json);
        }
        return new Shown(made, "[" + String.join(", ", shown) + "]");
    }

    static String encoded(KvFormat format, GenericRow row) {
        RowEncoder encoder = RowEncoder.create(format, TYPES);
        encoder.startNewRow();
        for (int i = 0; i < TYPES.length; i++) {
            encoder.encodeField(i, row.getField(i));
        }
        BinaryRow made = encoder.finishRow();
        byte[] bytes = new byte[made.getSizeInBytes()];
        made.copyTo(bytes, 0);
        return hex(bytes);
    }

    public static void main(String[] args) {
        RowType rowType = RowType.of(TYPES);
        List<String> types = new ArrayList<>();
        for (DataType t : TYPES) {
            byte[] json = JsonSerdeUtils.writeValueAsBytes(t, DataTypeJsonSerde.INSTANCE);
            types.add(new String(json, StandardCharsets.UTF_8));
        }
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < ROWS; i++) {
            Shown made = row(rowType);
            GenericRow row = (GenericRow) made.value;
            lines.add(
                    String.format(
                            "{\"values\": %s, \"compacted\": \"%s\", \"indexed\": \"%s\"}",
                            made.json,
                            encoded(KvFormat.COMPACTED, row),
                            encoded(KvFormat.INDEXED, row)));
        }
        System.out.println("{\"types\": [" + String.join(", ", types) + "],");
        System.out.println("\"rows\": [\n" + String.join(",\n", lines) + "\n]}");
    }
}
