package leasehold.client;

/** Somebody else has the lock, and the wait is over. */
public final class LockHeldException extends LeaseholdException {
    private static final long serialVersionUID = 1;

    LockHeldException(Answer answer) {
        super(answer);
    }
}
