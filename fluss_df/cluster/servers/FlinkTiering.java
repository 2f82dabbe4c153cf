import org.apache.fluss.flink.tiering.FlussLakeTieringEntrypoint;

/** Flink's tiering service in one JVM: the entry point returns when the job is submitted. */
public class FlinkTiering {
    public static void main(String[] arguments) throws Exception {
        FlussLakeTieringEntrypoint.main(arguments);
        Thread.currentThread().join();
    }
}
