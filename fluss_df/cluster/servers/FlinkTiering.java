import org.apache.fluss.flink.tiering.FlussLakeTieringEntrypoint;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Flink's tiering service in one JVM: the entry point returns when the job is submitted.
 *
 * <p>A table that cannot be tiered, or that was dropped meanwhile, fails the job. Flink in one JVM
 * does not start a failed job again unless told to, and no other table would be tiered any more.
 */
public class FlinkTiering extends StreamExecutionEnvironment {
    public static void main(String[] arguments) throws Exception {
        Configuration local = new Configuration();
        local.setString("restart-strategy.type", "fixed-delay");
        local.setString("restart-strategy.fixed-delay.attempts", "2147483647");
        local.setString("restart-strategy.fixed-delay.delay", "1 s");
        for (String listens : new String[] {
            "jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address"
        }) {
            local.setString(listens, "127.0.0.1");
        }
        initializeContextEnvironment(
                given -> {
                    // a Flink in this JVM is refused while the context says where jobs run
                    resetContextEnvironment();
                    local.addAll(given);
                    return createLocalEnvironment(local);
                });
        FlussLakeTieringEntrypoint.main(arguments);
        Thread.currentThread().join();
    }
}
