import java.util.Timer;
import java.util.TimerTask;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs queries of Flink SQL on a Fluss cluster; prints a line for each row: its fields, by tabs. */
public class FlinkSql {
    private static final long LONGEST_MS = 60_000;

    public static void main(String[] args) throws Exception {
        TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        flink.getConfig().set("parallelism.default", "2");
        flink.executeSql("CREATE CATALOG fluss WITH ('type' = 'fluss', 'bootstrap.servers' = '" + args[0] + "')");
        flink.executeSql("USE CATALOG fluss");
        for (int query = 1; query < args.length; query++) {
            TableResult result = null;
            Timer timer = new Timer(true);
            try {
                result = flink.executeSql(args[query]);
                JobClient job = result.getJobClient().get();
                timer.schedule(new TimerTask() {
                    @Override
                    public void run() {
                        job.cancel();
                    }
                }, LONGEST_MS);
                CloseableIterator<Row> rows = result.collect();
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
            timer.cancel();
            System.out.flush();
        }
        System.out.flush();
        System.exit(0);
    }
}
