//! The queue as the store keeps it: every method is one atomic step, and only time changes it besides.
//!
//! Time is counted in steps of as long as an offer lasts. Permits, fencing tokens and several locks at once are left out:
//! they do not decide who is next.

mod queue;
mod seen;

use super::Mistake;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, WAIT};

/// The claim that holds the lock when the story begins.
pub(super) const OUTSIDER: usize = CLAIMS;
pub(super) const TTL: u8 = 2;
const OFFER: u8 = 1;
/// How long a line outlives the last ask of its process.
const SILENCE: u8 = 3;
/// How long a place is kept for a claim that nobody waits for.
const PLACE_KEPT: u8 = 2;
/// What a countdown shows that never ends.
pub(super) const FOREVER: u8 = u8::MAX;

/// One request to the store on behalf of a claim that would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub(super) claim: usize,
    pub(super) attempt: usize,
    pub(super) process: usize,
    pub(super) shared: bool,
    /// The place that it was told, if it was told one.
    pub(super) sequence: Option<u8>,
    /// How long it may still be granted from its place.
    pub(super) time_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Replayed,
    Waiting {
        sequence: u8,
        restored: bool,
    },
    Overdue,
    /// The claim has ended, or the attempt was withdrawn before it arrived.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) shared: bool,
    pub(super) time_left: u8,
    /// The attempt that was granted, until another one was told as well.
    pub(super) attempt: Option<usize>,
}

/// What is known of a waiting claim while it stands and for a while after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ticket {
    sequence: u8,
    shared: bool,
    /// Where it came to stand last.
    process: usize,
    time_left: u8,
}

/// The waiters of one process, by their sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    sequences: [Option<u8>; CLAIMS],
    time_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Offer {
    process: usize,
    time_left: u8,
}

/// The first waiter of the queue.
struct First {
    claim: usize,
    process: usize,
    sequence: u8,
    shared: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    /// Of each claim and of the outsider.
    pub(super) leases: [Option<Lease>; CLAIMS + 1],
    has_ended: [bool; CLAIMS + 1],
    was_withdrawn: [[bool; ATTEMPTS]; CLAIMS],
    tickets: [Option<Ticket>; CLAIMS],
    lines: [Line; PROCESSES],
    /// The sequence number of each process's first waiter, as far as the store has noticed.
    queue: [Option<u8>; PROCESSES],
    is_waited_for: bool,
    last_sequence: u8,
    offer: Option<Offer>,
    /// Offers on their way to each process.
    pub(super) messages: [bool; PROCESSES],
    /// For the properties alone: the process let an offer lapse and nobody stood there since.
    was_passed_over: [bool; PROCESSES],
    /// For the properties alone: places that went because the process was silent, or another request took them.
    is_lost: [[bool; CLAIMS]; PROCESSES],
}

impl Store {
    /// Grants the lock, or lets the claim stand.
    pub(super) fn acquire(&mut self, ask: Ask, mistake: Option<Mistake>) -> Answer {
        let (claim, process) = (ask.claim, ask.process);
        if let Some(answer) = self.known(ask) {
            if answer == Answer::Ended && self.leave(process, claim) {
                self.offer(mistake);
            }
            return answer;
        }
        let is_overdue = ask.sequence.is_some() && ask.time_left == 0;
        if is_overdue && mistake != Some(Mistake::NoLookAtTheTime) {
            self.leave(process, claim);
            self.offer(mistake);
            return Answer::Overdue;
        }
        if let Some(sequence) = ask.sequence
            && self.stands_elsewhere(claim, process)
            && mistake != Some(Mistake::FormerRequestsGoOn)
        {
            // A later request took the place along; this one finds out that its client has gone.
            return Answer::Waiting {
                sequence,
                restored: false,
            };
        }
        let place = ask.sequence.or(self.place_of(claim));
        if !self.admits(ask.shared) || !self.is_first(process, place, mistake) {
            return self.stand(ask, place, mistake);
        }
        self.grant(ask, mistake);
        Answer::Granted
    }

    /// The answers that depend on what the claim is already.
    fn known(&mut self, ask: Ask) -> Option<Answer> {
        let lease = &mut self.leases[ask.claim];
        if lease.is_some_and(|lease| lease.attempt == Some(ask.attempt)) {
            return Some(Answer::Granted);
        }
        if self.has_ended[ask.claim] || self.was_withdrawn[ask.claim][ask.attempt] {
            return Some(Answer::Ended);
        }
        lease.as_mut()?.attempt = None;
        Some(Answer::Replayed)
    }

    fn stands_elsewhere(&self, claim: usize, process: usize) -> bool {
        self.tickets[claim].is_some_and(|ticket| {
            ticket.process != process && self.lines[ticket.process].sequences[claim].is_some()
        })
    }

    fn stand(&mut self, ask: Ask, place: Option<u8>, mistake: Option<Mistake>) -> Answer {
        let (claim, process) = (ask.claim, ask.process);
        let sequence = place.unwrap_or(self.last_sequence + 1);
        self.last_sequence = self.last_sequence.max(sequence);
        let moves = self.take_along(ask);
        self.tickets[claim] = Some(Ticket {
            sequence,
            shared: ask.shared,
            process,
            time_left: match ask.time_left {
                FOREVER => FOREVER,
                _ => WAIT + PLACE_KEPT,
            },
        });
        let line = &mut self.lines[process];
        let was_there = line.sequences[claim].replace(sequence).is_some();
        line.time_left = SILENCE;
        self.was_passed_over[process] = false;
        self.is_lost[process][claim] = false;
        self.index(process);
        self.is_waited_for = true;
        self.offer(mistake);
        Answer::Waiting {
            sequence,
            restored: !was_there && !moves && ask.sequence.is_some(),
        }
    }

    fn grant(&mut self, ask: Ask, mistake: Option<Mistake>) {
        let (claim, process) = (ask.claim, ask.process);
        self.take_along(ask);
        self.leave(process, claim);
        self.tickets[claim] = None;
        if self.first_of(process).is_some() {
            self.lines[process].time_left = SILENCE;
        }
        if self.queue == [None; PROCESSES] {
            self.forget_queue();
        }
        self.leases[claim] = Some(Lease {
            shared: ask.shared,
            time_left: TTL,
            attempt: Some(ask.attempt),
        });
        if ask.shared {
            self.offer(mistake);
        } else {
            self.offer = None;
        }
    }

    /// Ends a claim that holds.
    pub(super) fn release(&mut self, claim: usize, mistake: Option<Mistake>) {
        self.has_ended[claim] = true;
        self.open(claim, mistake);
    }

    /// Undoes what an attempt was granted, and keeps it from being granted should another ask of it arrive late.
    pub(super) fn withdraw(&mut self, claim: usize, attempt: usize, mistake: Option<Mistake>) {
        let lease = self.leases[claim];
        let is_untold = lease.is_some_and(|lease| lease.attempt == Some(attempt));
        if is_untold {
            self.open(claim, mistake);
        }
        if !is_untold || mistake != Some(Mistake::UndoneIsForgotten) {
            self.was_withdrawn[claim][attempt] = true;
        }
    }

    /// Takes a claim out of the waiters of a process and keeps its place for a while.
    pub(super) fn park(&mut self, claim: usize, process: usize, mistake: Option<Mistake>) {
        if !self.leave(process, claim) {
            return;
        }
        if let Some(ticket) = &mut self.tickets[claim] {
            ticket.time_left = PLACE_KEPT;
        }
        if mistake != Some(Mistake::ParkKeepsTheOffer) {
            self.offer(mistake);
        }
    }

    /// Lets a step of time pass: what is over is gone, and nobody is told.
    pub(super) fn tick(&mut self) {
        for (lease, has_ended) in self.leases.iter_mut().zip(&mut self.has_ended) {
            *has_ended |= lease.is_some_and(|lease| lease.time_left == 1);
            *lease = lease.filter(|lease| lease.time_left > 1);
            if let Some(lease) = lease {
                lease.time_left -= 1;
            }
        }
        for ticket in &mut self.tickets {
            *ticket = ticket.filter(|ticket| ticket.time_left > 1);
            if let Some(ticket) = ticket {
                count_down(&mut ticket.time_left);
            }
        }
        for (line, is_lost) in self.lines.iter_mut().zip(&mut self.is_lost) {
            count_down(&mut line.time_left);
            if line.time_left == 0 {
                for (sequence, is_lost) in line.sequences.iter_mut().zip(is_lost) {
                    *is_lost |= sequence.take().is_some();
                }
            }
        }
        if let Some(offer) = &mut self.offer {
            count_down(&mut offer.time_left);
        }
    }

    fn open(&mut self, claim: usize, mistake: Option<Mistake>) {
        if self.leases[claim].take().is_some_and(|lease| !lease.shared) {
            self.offer = None;
        }
        self.offer(mistake);
    }
}

/// One step less, if it ends at all.
pub(super) fn count_down(time_left: &mut u8) {
    if *time_left != FOREVER {
        *time_left = time_left.saturating_sub(1);
    }
}
