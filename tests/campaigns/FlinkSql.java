import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs queries of Flink SQL on a Fluss cluster; prints a line for each row: its fields, by tabs. */
public class FlinkSql {
    public static void main(String[] args) throws Exception {
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        flink.getConfig().set("parallelism.default", "2");
        flink.executeSql("CREATE CATALOG fluss WITH ('type' = 'fluss', 'bootstrap.servers' = '" + args[0] + "')");
        flink.executeSql("USE CATALOG fluss");
        for (int query = 1; query < args.length; query++) {
            try (CloseableIterator<Row> rows = flink.executeSql(args[query]).collect()) {
                while (rows.hasNext()) {
                    Row row = rows.next();
                    StringBuilder line = new StringBuilder("row " + query);
                    for (int field = 0; field < row.getArity(); field++) {
                        line.append('\t').append(row.getField(field));
                    }
                    System.out.println(line);
                }
                System.out.println("end " + query);
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                System.out.println("refused " + query + "\t" + cause);
            }
        }
        System.out.flush();
        System.exit(0);
    }
}
