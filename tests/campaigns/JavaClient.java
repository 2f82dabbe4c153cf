import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.lookup.Lookup;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.Upsert;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.ConfigOptions;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseInfo;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.SchemaInfo;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DecimalType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/** Obeys orders, a line of JSON each, with Fluss's client for Java; answers a line for each. */
public class JavaClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long LONGEST_S = 30;
    private static final long QUIET_NS = 3_000_000_000L;

    private final Connection connection;
    private final Admin admin;

    private JavaClient(String address) {
        Configuration options = new Configuration();
        options.set(ConfigOptions.BOOTSTRAP_SERVERS, Collections.singletonList(address));
        options.setString("client.writer.bucket.no-key-assigner", "round_robin");
        // long enough for the rows of an order to be one batch: one that changes nothing takes an offset
        options.setString("client.writer.batch-timeout", "100ms");
        connection = ConnectionFactory.createConnection(options);
        admin = connection.getAdmin();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JavaClient client = new JavaClient(args[0]);
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", client.obey(JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null
                        && (cause instanceof ExecutionException || cause instanceof CompletionException)) {
                    cause = cause.getCause();
                }
                answer.put("error", cause.getClass().getSimpleName());
                answer.put("message", String.valueOf(cause.getMessage()));
            }
            answers.write((JSON.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        client.connection.close();
        System.exit(0);
    }

    private static <T> T get(Future<T> future) throws Exception {
        return future.get(LONGEST_S, TimeUnit.SECONDS);
    }

    private Object obey(JsonNode order) throws Exception {
        String database = order.path("database").asText();
        TablePath path = order.has("table") ? TablePath.of(database, order.get("table").asText()) : null;
        boolean quiet = order.path("quiet").asBoolean();
        switch (order.get("do").asText()) {
            case "create database": {
                DatabaseDescriptor.Builder builder = DatabaseDescriptor.builder();
                if (order.hasNonNull("comment")) {
                    builder.comment(order.get("comment").asText());
                }
                return get(admin.createDatabase(database, builder.customProperties(texts(order.get("custom"))).build(), quiet));
            }
            case "drop database":
                return get(admin.dropDatabase(database, quiet, order.get("cascade").asBoolean()));
            case "database": {
                DatabaseInfo info = get(admin.getDatabaseInfo(database));
                return String.valueOf(info.getDatabaseDescriptor().getComment()) + new TreeMap<>(info.getDatabaseDescriptor().getCustomProperties());
            }
            case "databases":
                return get(admin.listDatabases());
            case "database exists":
                return get(admin.databaseExists(database));
            case "create table":
                return get(admin.createTable(path, TableDescriptor.fromJsonBytes(order.get("descriptor").asText().getBytes(StandardCharsets.UTF_8)), quiet));
            case "drop table":
                return get(admin.dropTable(path, quiet));
            case "tables": {
                List<String> names = new ArrayList<>(get(admin.listTables(database)));
                Collections.sort(names);
                return names;
            }
            case "table exists":
                return get(admin.tableExists(path));
            case "table": {
                TableInfo info = get(admin.getTableInfo(path));
                return info.getSchemaId() + " " + new String(info.toTableDescriptor().toJsonBytes(), StandardCharsets.UTF_8);
            }
            case "schema": {
                int id = order.path("id").asInt();
                SchemaInfo info = id == 0 ? get(admin.getTableSchema(path)) : get(admin.getTableSchema(path, id));
                return info.getSchemaId() + " " + new String(info.getSchema().toJsonBytes(), StandardCharsets.UTF_8);
            }
            case "alter table":
                return get(admin.alterTable(path, changes(order.get("changes")), quiet));
            case "create partition":
                return get(admin.createPartition(path, new PartitionSpec(texts(order.get("spec"))), quiet));
            case "drop partition":
                return get(admin.dropPartition(path, new PartitionSpec(texts(order.get("spec"))), quiet));
            case "partitions": {
                List<String> names = new ArrayList<>();
                List<PartitionInfo> found = order.has("spec")
                        ? get(admin.listPartitionInfos(path, new PartitionSpec(texts(order.get("spec")))))
                        : get(admin.listPartitionInfos(path));
                for (PartitionInfo info : found) {
                    names.add(info.getPartitionName() + " " + info.getPartitionSpec());
                }
                Collections.sort(names);
                return names;
            }
            case "offsets":
                return offsets(path, order);
            case "row count":
                return get(admin.getTableStats(path)).getRowCount();
            case "snapshots":
                return snapshots(path, order);
            default:
                try (Table table = connection.getTable(path)) {
                    return use(table, order);
                }
        }
    }

    private Object use(Table table, JsonNode order) throws Exception {
        RowType type = table.getTableInfo().getRowType();
        switch (order.get("do").asText()) {
            case "append": {
                AppendWriter writer = table.newAppend().createWriter();
                List<Future<?>> sent = new ArrayList<>();
                for (JsonNode row : order.get("rows")) {
                    sent.add(writer.append(row(row, type)));
                }
                for (Future<?> one : sent) {
                    get(one);
                }
                return sent.size();
            }
            case "upsert":
            case "delete": {
                Upsert upsert = table.newUpsert();
                if (order.has("columns")) {
                    upsert = upsert.partialUpdate(names(order.get("columns")).toArray(new String[0]));
                }
                UpsertWriter writer = upsert.createWriter();
                List<Future<?>> sent = new ArrayList<>();
                for (JsonNode row : order.get("rows")) {
                    InternalRow made = row(row, type);
                    sent.add(order.get("do").asText().equals("upsert") ? writer.upsert(made) : writer.delete(made));
                }
                for (Future<?> one : sent) {
                    get(one);
                }
                return sent.size();
            }
            case "lookup": {
                List<String> by = order.has("by") ? names(order.get("by")) : table.getTableInfo().getPrimaryKeys();
                RowType keys = type.project(by);
                Lookup lookup = order.has("by") ? table.newLookup().lookupBy(by) : table.newLookup();
                if (order.path("insert").asBoolean()) {
                    lookup = lookup.enableInsertIfNotExists();
                }
                Lookuper lookuper = lookup.createLookuper();
                List<Object> found = new ArrayList<>();
                for (JsonNode key : order.get("keys")) {
                    LookupResult result = get(lookuper.lookup(row(key, keys)));
                    List<String> rows = new ArrayList<>();
                    for (InternalRow one : result.getRowList()) {
                        rows.add(text(one, type));
                    }
                    found.add(rows);
                }
                return found;
            }
            case "scan":
                return scan(table, order, type);
            case "limit": {
                Scan scan = table.newScan().limit(order.get("limit").asInt());
                RowType read = type;
                if (order.has("columns")) {
                    scan = scan.project(names(order.get("columns")));
                    read = type.project(names(order.get("columns")));
                }
                Long partition = partition(table.getTableInfo().getTablePath(), order);
                List<Object> found = new ArrayList<>();
                for (int bucket = 0; bucket < table.getTableInfo().getNumBuckets(); bucket++) {
                    TableBucket place = new TableBucket(table.getTableInfo().getTableId(), partition, bucket);
                    found.add(rows(scan.createBatchScanner(place), read));
                }
                return found;
            }
            default:
                throw new IllegalArgumentException(order.toString());
        }
    }

    private static List<String> rows(BatchScanner scanner, RowType type) throws Exception {
        List<String> rows = new ArrayList<>();
        try (BatchScanner open = scanner) {
            long until = System.nanoTime() + LONGEST_S * 1_000_000_000L;
            while (System.nanoTime() < until) {
                CloseableIterator<InternalRow> batch = open.pollBatch(Duration.ofSeconds(1));
                if (batch == null) {
                    return rows;
                }
                while (batch.hasNext()) {
                    rows.add(text(batch.next(), type));
                }
                batch.close();
            }
        }
        throw new IllegalStateException("the batch scanner does not end");
    }

    private Object scan(Table table, JsonNode order, RowType type) throws Exception {
        TableInfo info = table.getTableInfo();
        Scan scan = table.newScan();
        RowType read = type;
        if (order.has("columns")) {
            scan = scan.project(names(order.get("columns")));
            read = type.project(names(order.get("columns")));
        }
        Map<TableBucket, Long> ends = new LinkedHashMap<>();
        Map<String, List<String>> found = new TreeMap<>();
        Map<Long, String> partitions = new LinkedHashMap<>();
        List<Integer> buckets = new ArrayList<>();
        for (int bucket = 0; bucket < info.getNumBuckets(); bucket++) {
            buckets.add(bucket);
        }
        try (LogScanner scanner = scan.createLogScanner()) {
            if (info.isPartitioned()) {
                for (PartitionInfo one : get(admin.listPartitionInfos(info.getTablePath()))) {
                    partitions.put(one.getPartitionId(), one.getPartitionName());
                    Map<Integer, Long> latest = get(admin.listOffsets(info.getTablePath(), one.getPartitionName(), buckets, new OffsetSpec.LatestSpec()).all());
                    for (int bucket : buckets) {
                        scanner.subscribeFromBeginning(one.getPartitionId(), bucket);
                        ends.put(new TableBucket(info.getTableId(), one.getPartitionId(), bucket), latest.get(bucket));
                    }
                }
            } else {
                Map<Integer, Long> latest = get(admin.listOffsets(info.getTablePath(), buckets, new OffsetSpec.LatestSpec()).all());
                for (int bucket : buckets) {
                    scanner.subscribeFromBeginning(bucket);
                    ends.put(new TableBucket(info.getTableId(), bucket), latest.get(bucket));
                }
            }
            ends.values().removeIf(end -> end <= 0);
            // a change of nothing may take the last offset, and brings no record
            long until = System.nanoTime() + QUIET_NS;
            while (!ends.isEmpty() && System.nanoTime() < until) {
                ScanRecords records = scanner.poll(Duration.ofMillis(200));
                if (!records.isEmpty()) {
                    until = System.nanoTime() + QUIET_NS;
                }
                for (TableBucket bucket : records.buckets()) {
                    if (records.records(bucket).isEmpty()) { // clients of 1.0 name it all the same
                        continue;
                    }
                    String name = partitions.getOrDefault(bucket.getPartitionId(), "") + "/" + bucket.getBucket();
                    List<String> rows = found.computeIfAbsent(name, any -> new ArrayList<>());
                    for (ScanRecord record : records.records(bucket)) {
                        rows.add(record.logOffset() + " " + record.getChangeType().shortString() + " " + text(record.getRow(), read));
                        if (ends.containsKey(bucket) && record.logOffset() >= ends.get(bucket) - 1) {
                            ends.remove(bucket);
                        }
                    }
                }
            }
        }
        return found;
    }

    private Long partition(TablePath path, JsonNode order) throws Exception {
        if (!order.has("partition")) {
            return null;
        }
        for (PartitionInfo info : get(admin.listPartitionInfos(path))) {
            if (info.getPartitionName().equals(order.get("partition").asText())) {
                return info.getPartitionId();
            }
        }
        return null;
    }

    private Object offsets(TablePath path, JsonNode order) throws Exception {
        OffsetSpec spec = order.has("timestamp")
                ? new OffsetSpec.TimestampSpec(order.get("timestamp").asLong())
                : order.path("earliest").asBoolean() ? new OffsetSpec.EarliestSpec() : new OffsetSpec.LatestSpec();
        List<Integer> buckets = new ArrayList<>();
        order.get("buckets").forEach(bucket -> buckets.add(bucket.asInt()));
        return new TreeMap<>(get(order.has("partition")
                ? admin.listOffsets(path, order.get("partition").asText(), buckets, spec).all()
                : admin.listOffsets(path, buckets, spec).all()));
    }

    private Object snapshots(TablePath path, JsonNode order) throws Exception {
        KvSnapshots found = get(order.has("partition")
                ? admin.getLatestKvSnapshots(path, order.get("partition").asText())
                : admin.getLatestKvSnapshots(path));
        List<Integer> buckets = new ArrayList<>(found.getBucketIds());
        Collections.sort(buckets);
        return buckets;
    }

    private static Map<String, String> texts(JsonNode node) {
        Map<String, String> made = new LinkedHashMap<>();
        if (node != null) {
            node.fields().forEachRemaining(entry -> made.put(entry.getKey(), entry.getValue().asText()));
        }
        return made;
    }

    private static List<String> names(JsonNode node) {
        List<String> made = new ArrayList<>();
        node.forEach(name -> made.add(name.asText()));
        return made;
    }

    private static List<TableChange> changes(JsonNode node) {
        List<TableChange> made = new ArrayList<>();
        for (JsonNode change : node) {
            if (change.has("set")) {
                made.add(TableChange.set(change.get("set").asText(), change.get("to").asText()));
            } else if (change.has("reset")) {
                made.add(TableChange.reset(change.get("reset").asText()));
            } else if (change.has("add")) {
                // the type is that of the one column of a schema
                Schema schema = Schema.fromJsonBytes(change.get("schema").asText().getBytes(StandardCharsets.UTF_8));
                DataType type = schema.getRowType().getTypeAt(0);
                made.add(TableChange.addColumn(change.get("add").asText(), type, null, TableChange.ColumnPosition.last()));
            } else if (change.has("drop")) {
                made.add(TableChange.dropColumn(change.get("drop").asText()));
            } else {
                made.add(TableChange.renameColumn(change.get("rename").asText(), change.get("to").asText()));
            }
        }
        return made;
    }

    // ---- values

    private static GenericRow row(JsonNode values, RowType type) {
        GenericRow made = new GenericRow(values.size());
        for (int i = 0; i < values.size(); i++) {
            made.setField(i, value(values.get(i), type.getTypeAt(i)));
        }
        return made;
    }

    private static Object value(JsonNode value, DataType type) {
        if (value.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return value.asBoolean();
            case TINYINT:
                return (byte) value.asInt();
            case SMALLINT:
                return (short) value.asInt();
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return value.asInt();
            case BIGINT:
                return value.asLong();
            case FLOAT:
                return Float.parseFloat(value.asText());
            case DOUBLE:
                return Double.parseDouble(value.asText());
            case CHAR:
            case STRING:
                return BinaryString.fromString(value.asText());
            case BINARY:
            case BYTES:
                return Base64.getDecoder().decode(value.asText());
            case DECIMAL:
                return Decimal.fromBigDecimal(new BigDecimal(value.asText()), ((DecimalType) type).getPrecision(), ((DecimalType) type).getScale());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return TimestampNtz.fromMillis(value.get(0).asLong(), value.get(1).asInt());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return TimestampLtz.fromEpochMillis(value.get(0).asLong(), value.get(1).asInt());
            case ARRAY: {
                Object[] items = new Object[value.size()];
                for (int i = 0; i < items.length; i++) {
                    items[i] = value(value.get(i), ((ArrayType) type).getElementType());
                }
                return new GenericArray(items);
            }
            case MAP: {
                Map<Object, Object> entries = new LinkedHashMap<>();
                for (JsonNode entry : value) {
                    entries.put(value(entry.get(0), ((MapType) type).getKeyType()), value(entry.get(1), ((MapType) type).getValueType()));
                }
                return new GenericMap(entries);
            }
            case ROW:
                return row(value, (RowType) type);
            default:
                throw new IllegalArgumentException(type.toString());
        }
    }

    private static String text(InternalRow row, RowType type) {
        List<String> values = new ArrayList<>();
        for (int i = 0; i < type.getFieldCount(); i++) {
            values.add(text(InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row), type.getTypeAt(i)));
        }
        return values.toString();
    }

    private static String text(Object value, DataType type) {
        if (value == null) {
            return "null";
        }
        switch (type.getTypeRoot()) {
            case BINARY:
            case BYTES:
                return Base64.getEncoder().encodeToString((byte[]) value);
            case ARRAY:
                return texts((InternalArray) value, ((ArrayType) type).getElementType()).toString();
            case MAP: {
                InternalMap map = (InternalMap) value;
                return texts(map.keyArray(), ((MapType) type).getKeyType()) + "->" + texts(map.valueArray(), ((MapType) type).getValueType());
            }
            case ROW:
                return text((InternalRow) value, (RowType) type);
            default:
                return value.toString();
        }
    }

    private static List<String> texts(InternalArray array, DataType type) {
        List<String> made = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            made.add(text(InternalArray.createElementGetter(type).getElementOrNull(array, i), type));
        }
        return made;
    }
}
