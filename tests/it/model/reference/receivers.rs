//! The model of who has received a lease, and what becomes of the lease when one of them is rolled back.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    Attempt(u64),
    /// An attempt whose stream was closed after another attempt had received the lease.
    Closed,
    /// The attempt of the grant, undone after another attempt had received the lease.
    Undone,
    /// A request after which no attempt so far may roll the lease back.
    Independent,
}

/// Rolls back an attempt: its stream was closed, or no client has received its answer. If the lease ends, returns whether
/// it had been in use.
pub(super) fn roll_back(
    received: &mut Vec<Receiver>,
    attempt: u64,
    is_closed: bool,
) -> Option<bool> {
    let turn = received
        .iter()
        .position(|by| *by == Receiver::Attempt(attempt))?;
    let (is_grant, is_last) = (turn == 0, turn + 1 == received.len());
    let goes_back = !is_closed && !is_grant;
    let has_ended = |turn: usize| matches!(received[turn], Receiver::Closed | Receiver::Undone);
    if goes_back && !(is_last && has_ended(turn - 1)) {
        received.remove(turn);
        return None;
    }
    let is_unused = is_grant || received[..turn] == [Receiver::Undone];
    received[turn] = match is_closed {
        true => Receiver::Closed,
        false => Receiver::Undone,
    };
    is_last.then_some(is_closed || !is_unused)
}
