package leasehold.client;

/** No useful answer for as long as the client retries. What was granted meanwhile is released, or expires. */
public final class UnavailableException extends LeaseholdException {
    private static final long serialVersionUID = 1;

    UnavailableException(Answer answer) {
        super(answer);
    }
}
