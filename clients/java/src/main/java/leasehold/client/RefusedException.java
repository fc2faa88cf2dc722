package leasehold.client;

/** The request is wrong or not allowed, so that a retry cannot help. {@link #code()} says why. */
public final class RefusedException extends LeaseholdException {
    private static final long serialVersionUID = 1;

    RefusedException(Answer answer) {
        super(answer);
    }
}
