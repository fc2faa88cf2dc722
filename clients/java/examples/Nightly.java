import java.time.Duration;
import leasehold.client.LeaseholdClient;
import leasehold.client.LockHeldException;

/** A job that all machines start and one of them runs. It takes LEASEHOLD_URL and LEASEHOLD_API_KEY_FILE. */
public final class Nightly {
    public static void main(String[] arguments) throws InterruptedException {
        var client = LeaseholdClient.fromEnvironment();
        // minHold keeps the lock from machines whose clocks are up to a minute late.
        var lock = client.lock("nightly-report").waitFor(Duration.ZERO).minHold(Duration.ofMinutes(1));
        try (var lease = lock.acquire()) {
            for (int page = 0; page < 3; page++) {
                // Between steps, stop if the lease is lost.
                lease.throwIfLost();
                System.out.printf("page %d, written with fencing token %d%n", page, lease.fencingToken());
            }
        } catch (LockHeldException held) {
            System.out.println("another machine runs it: " + held.getMessage());
        }
    }
}
