package leasehold.client;

import java.util.Map;

/**
 * The lease is not ours any more: stop working. {@link #code()} is the service's, such as {@code lease_evicted}; or
 * {@code lease_expired} if it could not be renewed in time.
 */
public final class LeaseLostException extends LeaseholdException {
    private static final long serialVersionUID = 1;

    LeaseLostException(Answer answer) {
        super(answer);
    }

    private LeaseLostException(String message, String code) {
        super(message, code, 0, Map.of());
    }

    /** @param refusal what the service last refused a renewal with, or null */
    static LeaseLostException notRenewed(Answer refusal) {
        String reason =
                refusal == null ? "" : ", because the service answered " + refusal.status() + ": " + refusal.detail();
        return new LeaseLostException("the lease was not renewed in time" + reason, "lease_expired");
    }
}
