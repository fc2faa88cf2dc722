//! The clients: each runs one claim after the other through a scene, until the run is over.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::actor::{Actor, Held, StreamState};
use super::chance::Chance;
use super::plan::{Ending, Plan, Scene};
use super::record::{Action, Answer};
use super::recorder::Recorder;
use super::resource::{Presented, Work};
use crate::waiters::client::Addresses;

/// The state that all clients of a run share.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) recorder: Recorder,
    pub(super) addresses: Addresses,
    /// What the locks protect.
    pub(super) resource: SocketAddr,
    pub(super) presented: Presented,
    pub(super) processes: usize,
    /// The number of the first of them in the record.
    pub(super) first_process: usize,
    pub(super) ttl_max: Duration,
    pub(super) seed: u64,
    /// Set once: then clients finish their current claim and begin no new one.
    pub(super) over: tokio::sync::watch::Receiver<bool>,
}

/// How long after its release a client that is late still writes.
const LATE: Duration = Duration::from_millis(100);

/// One client, until the run is over.
pub(super) async fn client(stage: Stage, number: usize, keeps: bool) {
    let mut chance = Chance::new(stage.seed, number as u64);
    let mut turn = 0;
    while !*stage.over.borrow() {
        turn += 1;
        let draw = if keeps { Plan::draw_keeper } else { Plan::draw };
        let mut plan = draw(&mut chance, stage.processes, stage.ttl_max);
        plan.processes = plan.processes.map(|it| it + stage.first_process);
        let owner = format!("c{number}-{turn}");
        let mut actor = Actor::new(&plan, owner, &stage);
        play(&mut actor, &plan).await;
        sleep(plan.pause).await;
    }
}

async fn play(actor: &mut Actor<'_>, plan: &Plan) {
    let [here, there, elsewhere] = plan.processes;
    let wait = plan.terms.wait;
    match plan.scene {
        Scene::Plain { .. } => {
            if holds(actor.acquire(here, wait).await.as_ref()) {
                plain(actor, plan).await;
            } else {
                again_or_leave(actor, plan).await;
            }
        }
        Scene::HangUp { after, away } => {
            let answered = actor.acquire_and_hang_up(here, wait, after).await;
            if let Some(away) = away.filter(|_| answered.is_none()) {
                sleep(away).await;
                if !holds(actor.acquire(there, wait).await.as_ref()) {
                    return again_or_leave(actor, plan).await;
                }
            }
            // A client that disconnected and does not come back may have been granted the lock.
            if answered.is_some() || away.is_some() {
                actor.work_for(plan.hold).await;
                release(actor, elsewhere).await;
            }
        }
        Scene::Keep => {
            if holds(actor.acquire(here, wait).await.as_ref()) {
                actor.work_for(plan.hold).await;
            }
            release(actor, there).await;
        }
        Scene::Move { after, cuts } => moves(actor, plan, after, cuts).await,
        Scene::Stream { ending } => streams(actor, plan, ending).await,
        Scene::Evict => {
            sleep(plan.hold).await;
            actor.act(here, Action::Evict).await;
        }
    }
}

fn holds(answer: Option<&Answer>) -> bool {
    matches!(answer, Some(Answer::Granted { .. }))
}

/// Retries a claim that was not granted with the same token, or leaves the queue.
async fn again_or_leave(actor: &mut Actor<'_>, plan: &Plan) {
    if actor.token.is_none() {
        return;
    }
    let [_, there, elsewhere] = plan.processes;
    if plan.hold.as_millis().is_multiple_of(2)
        && holds(actor.acquire(there, plan.terms.wait).await.as_ref())
    {
        actor.work_for(plan.hold).await;
    }
    release(actor, elsewhere).await;
}

/// Releases, and retries if the outcome is unknown.
async fn release(actor: &mut Actor<'_>, process: usize) {
    for turn in 0..3 {
        match actor.act(process + turn, Action::Release).await {
            Some(Answer::Refused(refusal)) if refusal.status >= 500 => {}
            Some(_) => return,
            None => {}
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Holds, and repeats requests in every way.
async fn plain(actor: &mut Actor<'_>, plan: &Plan) {
    let Scene::Plain {
        renewals,
        repeats,
        returns,
        reenters,
        steps_down,
        abandons,
    } = plan.scene
    else {
        return;
    };
    let [here, there, elsewhere] = plan.processes;
    let began = Instant::now();
    let work = actor.begin_work().await;
    if repeats {
        actor.acquire(there, Duration::ZERO).await;
    }
    if reenters {
        actor.reenter(here, 2).await;
        actor.act(there, Action::StepBack).await;
    }
    let mut work = Some(work);
    if steps_down {
        // From then on others hold it, too.
        finish(&mut work).await;
        actor.act(here, Action::StepDown).await;
    }
    for turn in 0..renewals {
        sleep(plan.hold / u32::try_from(renewals).expect("few")).await;
        actor
            .act([here, there, elsewhere][turn % 3], Action::Renew)
            .await;
    }
    if abandons {
        // A second after its end, a renewal must not revive it.
        sleep(plan.terms.ttl + Duration::from_secs(1)).await;
        finish(&mut work).await;
        actor.act(there, Action::Renew).await;
        return;
    }
    sleep(plan.hold.saturating_sub(began.elapsed())).await;
    if renewals.is_multiple_of(2) {
        finish(&mut work).await;
    }
    release(actor, elsewhere).await;
    if work.is_some() {
        // As one that stood still while its lease ended, and does not know it.
        sleep(LATE).await;
        finish(&mut work).await;
    }
    if returns {
        actor.acquire(there, Duration::ZERO).await;
        actor.act(here, Action::Renew).await;
    }
}

async fn finish(work: &mut Option<Work>) {
    if let Some(work) = work.take() {
        work.finish().await;
    }
}

/// Waits at one process and posts its token at another one while the first request is open, or just after it was cut.
async fn moves(actor: &mut Actor<'_>, plan: &Plan, after: Duration, cuts: bool) {
    let [here, there, elsewhere] = plan.processes;
    let wait = plan.terms.wait;
    // A stream gets a `queued` event, so its place is certain.
    if plan.terms.names.len() > 1 || cuts {
        if actor.acquire_and_hang_up(here, wait, after).await.is_none() {
            actor.acquire(there, wait).await;
        }
        actor.work_for(plan.hold).await;
        return release(actor, elsewhere).await;
    }
    let Some(mut first) = actor.hold(here, wait).await else {
        return;
    };
    let state = first.listen(after, false).await;
    match state {
        StreamState::Over => {}
        StreamState::Queued | StreamState::Holds => {
            let there_holds = actor.hold(there, wait);
            if let Some(mut second) = there_holds.await {
                let (old, new) = tokio::join!(
                    first.listen(wait.max(plan.hold), true),
                    second.listen(wait, true)
                );
                if old == StreamState::Holds && new == StreamState::Queued {
                    second.listen(plan.hold, false).await;
                }
                let work = actor.begin_work_with(&second.leases).await;
                sleep(plan.hold).await;
                work.finish().await;
                end(second, new);
            }
            end(first, state);
        }
    }
    release(actor, elsewhere).await;
}

fn end(held: Held, state: StreamState) {
    if state != StreamState::Over {
        held.close();
    }
}

/// Holds with a stream until it is closed or taken over.
async fn streams(actor: &mut Actor<'_>, plan: &Plan, ending: Ending) {
    let [here, there, elsewhere] = plan.processes;
    let Some(mut first) = actor.hold(here, plan.terms.wait).await else {
        return;
    };
    let mut state = first.listen(plan.terms.wait, true).await;
    if state == StreamState::Holds {
        let work = actor.begin_work_with(&first.leases).await;
        state = match first.listen(plan.hold, false).await {
            StreamState::Over => StreamState::Over,
            StreamState::Queued | StreamState::Holds => state,
        };
        work.finish().await;
    }
    if state != StreamState::Holds || ending == Ending::Closed {
        return end(first, state);
    }
    match ending {
        Ending::Closed => first.close(),
        Ending::TakenOver | Ending::TakenOverBriefly(_) => {
            let Some(mut second) = actor.hold(there, plan.terms.wait).await else {
                return end(first, state);
            };
            let second_state = second.listen(Duration::from_secs(2), true).await;
            if let Ending::TakenOverBriefly(after) = ending {
                sleep(Duration::from_millis(after)).await;
                end(second, second_state);
                return drain_first(first).await;
            }
            drain_first(first).await;
            match second_state {
                StreamState::Holds => keeps(actor, second, plan, elsewhere).await,
                StreamState::Queued | StreamState::Over => end(second, second_state),
            }
        }
        Ending::Posted | Ending::Put => {
            let taken = match ending {
                Ending::Put => actor.act(there, Action::Renew).await,
                _ => actor.acquire(there, Duration::ZERO).await,
            };
            drain_first(first).await;
            if holds(taken.as_ref()) {
                actor.work_for(plan.hold).await;
                actor.act(elsewhere, Action::Renew).await;
            }
            release(actor, elsewhere).await;
        }
    }
}

/// Reads events of the stream that was taken over until it is closed.
async fn drain_first(mut first: Held) {
    let state = first.listen(Duration::from_millis(20), false).await;
    end(first, state);
}

/// The stream that took over keeps holding after the first one is closed.
async fn keeps(actor: &mut Actor<'_>, mut second: Held, plan: &Plan, elsewhere: usize) {
    let state = second
        .listen(plan.hold.max(Duration::from_millis(50)), false)
        .await;
    if state == StreamState::Over {
        return;
    }
    if plan.hold.as_millis().is_multiple_of(3) {
        actor.act(elsewhere, Action::Renew).await;
        second.close();
        release(actor, elsewhere).await;
    } else {
        second.close();
    }
}
