import java.util.Arrays;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs statements of Flink SQL on a Fluss cluster; prints a line for each row: its fields, by tabs.
 *
 * <p>A query that begins with STREAM never ends: it is cancelled when no row came for a while, and
 * its rows begin with their kind of change.
 */
public class FlinkSql {
    private static final long LONGEST_MS = 60_000;
    private static final long QUIET_MS = 20_000;
    private static final String STREAM = "STREAM ";

    private static TableEnvironment environment(EnvironmentSettings settings, String servers) {
        TableEnvironment flink = TableEnvironment.create(settings);
        flink.getConfig().set("parallelism.default", "2");
        flink.executeSql("CREATE CATALOG fluss WITH ('type' = 'fluss', 'bootstrap.servers' = '" + servers + "')");
        flink.executeSql("USE CATALOG fluss");
        return flink;
    }

    public static void main(String[] args) throws Exception {
        TableEnvironment batch = environment(EnvironmentSettings.inBatchMode(), args[0]);
        TableEnvironment streaming = environment(EnvironmentSettings.inStreamingMode(), args[0]);
        for (int query = 1; query < args.length; query++) {
            boolean endless = args[query].startsWith(STREAM);
            AtomicLong until = new AtomicLong(System.currentTimeMillis() + LONGEST_MS);
            Timer timer = new Timer(true);
            try {
                TableResult result = endless
                        ? streaming.executeSql(args[query].substring(STREAM.length()))
                        : batch.executeSql(args[query]);
                // statements that define something have no job
                result.getJobClient().ifPresent(job -> timer.schedule(new TimerTask() {
                    @Override
                    public void run() {
                        if (System.currentTimeMillis() > until.get()) {
                            job.cancel();
                            cancel();
                        }
                    }
                }, 500, 500));
                CloseableIterator<Row> rows = result.collect();
                while (rows.hasNext()) {
                    Row row = rows.next();
                    StringBuilder line = new StringBuilder("row " + query);
                    if (endless) {
                        until.set(System.currentTimeMillis() + QUIET_MS);
                        line.append('\t').append(row.getKind().shortString());
                    }
                    for (int field = 0; field < row.getArity(); field++) {
                        Object value = row.getField(field);
                        line.append('\t').append(value instanceof Object[] ? Arrays.deepToString((Object[]) value) : value);
                    }
                    System.out.println(line);
                }
                System.out.println("end " + query);
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                boolean ended = endless && String.valueOf(cause.getMessage()).contains("cancelled");
                System.out.println(ended ? "end " + query : "refused " + query + "\t" + cause);
            }
            timer.cancel();
            System.out.flush();
        }
        System.out.flush();
        System.exit(0);
    }
}
