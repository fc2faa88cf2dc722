package leasehold.client;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A moment, on two clocks. Nobody can set the monotonic clock, but on Linux and macOS it stops while the machine is
 * suspended; the system clock goes on. What has elapsed is the larger of what both say. So a lease is never counted for
 * too long; a system clock that is set forward ends it early.
 */
record Moment(long nanos, long millis) {
    static Moment now() {
        return new Moment(System.nanoTime(), System.currentTimeMillis());
    }

    Duration elapsed() {
        Duration monotonic = Duration.ofNanos(System.nanoTime() - nanos);
        Duration system = Duration.ofMillis(System.currentTimeMillis() - millis);
        return longer(monotonic, system);
    }

    static Duration longer(Duration one, Duration other) {
        return one.compareTo(other) >= 0 ? one : other;
    }

    static Duration shorter(Duration one, Duration other) {
        return one.compareTo(other) <= 0 ? one : other;
    }

    /** The same or up to a quarter more, so that many clients do not act at the same moment. */
    static Duration later(Duration duration) {
        return scaled(duration, ThreadLocalRandom.current().nextDouble(1.0, 1.25));
    }

    /** Between half of it and all of it. */
    static Duration jittered(Duration duration) {
        return scaled(duration, ThreadLocalRandom.current().nextDouble(0.5, 1.0));
    }

    private static Duration scaled(Duration duration, double factor) {
        return Duration.ofNanos((long) (duration.toNanos() * factor));
    }
}
