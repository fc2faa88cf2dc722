//! Which Redis the Sentinels name as the primary, asked again for each connection.
//!
//! A Sentinel that was cut off, or that does not know of a failover yet, still names the former primary. So more than
//! half of all Sentinels have to answer, and the latest configuration counts: each failover has a larger epoch, to which
//! more than half of them have to agree.

mod failures;
mod states;
pub(super) mod switches;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::aio::PubSub;
use redis::{RedisConnectionInfo, RedisResult};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout, timeout_at};

use super::UNPOISONED;
use super::failure::Failure;
use super::transport::{Endpoint, Transport};
use crate::config::SentinelAddress;
use crate::store::Fault;
use failures::{denied, disagreeing, outdated, refused, too_few};
use states::SentinelStates;

/// How long a Sentinel may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the others may take once most have answered: one of them may be the first to know of a failover. A health
/// check waits for all.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_millis(100);
/// The most Sentinels that are asked.
const SENTINELS_MAX: usize = 15;

/// How long the epoch of a failover is remembered beyond the last answer with it. Sentinels that were set up anew begin
/// with smaller ones.
const EPOCH_KNOWN_FOR: Duration = Duration::from_secs(60);

/// What a Sentinel says about one server, by name.
type Properties = BTreeMap<String, String>;
/// By Sentinel, the primary that it names, or why it does not answer.
pub(super) type NamedPrimaries = BTreeMap<Endpoint, Result<Endpoint, Failure>>;
/// The answers to what a Sentinel is asked at once.
type PipelineAnswer = (String, Properties, (String, String), Vec<Properties>);

/// The Sentinels of one primary.
pub(super) struct Sentinels {
    /// Those of the URL, which know the others.
    seeds: Vec<Endpoint>,
    primary: String,
    settings: RedisConnectionInfo,
    /// The largest epoch, and when it was last seen.
    latest: Mutex<Option<(u64, Instant)>>,
    /// Whether all of them answer and name the same primary.
    pub(super) states: SentinelStates,
}

/// What the Sentinels have answered in one round: by their ids, and by the addresses that were asked.
#[derive(Default)]
struct RoundAnswers {
    by_id: HashMap<String, SentinelAnswer>,
    by_endpoint: NamedPrimaries,
}

/// What one Sentinel answers.
#[derive(Debug)]
struct SentinelAnswer {
    /// Identifies the Sentinel, which may have several addresses.
    id: String,
    /// The number of the failover that made this Redis the primary.
    epoch: u64,
    primary: Endpoint,
    /// The other Sentinels that it knows.
    others: Vec<Endpoint>,
    /// How many of them it needs to call the primary down.
    quorum: usize,
}

impl Sentinels {
    pub(super) fn new(address: &SentinelAddress, settings: RedisConnectionInfo) -> Self {
        Self {
            seeds: address.sentinels.clone(),
            primary: address.primary.clone(),
            settings,
            latest: Mutex::default(),
            states: SentinelStates::default(),
        }
    }

    /// The Sentinels of the URL.
    pub(super) fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }

    /// The name under which they watch the primary.
    pub(super) fn name(&self) -> &str {
        &self.primary
    }

    /// A connection for messages of one of them.
    pub(super) async fn open_pubsub(
        &self,
        transport: &Transport,
        endpoint: &Endpoint,
    ) -> Result<PubSub, Failure> {
        transport.open_pubsub(endpoint, &self.settings).await
    }

    /// The endpoint of the primary.
    ///
    /// # Errors
    /// Too few Sentinels answer, or they know no primary of this name.
    pub(super) async fn primary(&self, transport: &Transport) -> Result<Endpoint, Failure> {
        let (primary, _) = self.round(transport, LAST_ANSWERS_WITHIN).await;
        primary
    }

    /// Asks all of them for a health check.
    pub(super) async fn check(&self, transport: &Transport) {
        let (primary, answers) = self.round(transport, ANSWER_TIMEOUT).await;
        self.states.note(answers, primary.ok().as_ref());
    }

    /// Asks the Sentinels. Also returns which primary each of them names.
    async fn round(
        &self,
        transport: &Transport,
        last_answers_within: Duration,
    ) -> (Result<Endpoint, Failure>, NamedPrimaries) {
        let mut asked: BTreeSet<Endpoint> = self.addresses().await;
        let mut round: Vec<Endpoint> = asked.iter().cloned().collect();
        let mut answers = RoundAnswers::default();
        // The second round asks those that the first ones know.
        for _ in 0..2 {
            let gathering = self.gather(transport, &round, last_answers_within, &mut answers);
            gathering.await;
            if is_majority(&answers.by_id) {
                break;
            }
            let known = answers.by_id.values();
            let known: BTreeSet<Endpoint> = known.flat_map(|it| it.others.clone()).collect();
            round = known.difference(&asked).cloned().collect();
            round.truncate(SENTINELS_MAX.saturating_sub(asked.len()));
            asked.extend(round.iter().cloned());
        }
        let RoundAnswers {
            by_id,
            mut by_endpoint,
        } = answers;
        if by_id.is_empty() {
            explain_silence(transport, &mut by_endpoint).await;
        }
        let primary = self.judge(by_id, &by_endpoint);
        (primary, by_endpoint)
    }

    /// The primary according to these answers, of the Sentinels that were asked.
    fn judge(
        &self,
        answers: HashMap<String, SentinelAnswer>,
        asked: &NamedPrimaries,
    ) -> Result<Endpoint, Failure> {
        if !is_majority(&answers) {
            return Err(too_few(&answers, asked));
        }
        let all_answer = answers.len() == total(&answers);
        let latest_epoch = answers.values().map(|answer| answer.epoch).max();
        if !latest_epoch.is_some_and(|epoch| self.is_latest(epoch, all_answer)) {
            return Err(outdated(asked));
        }
        elected(answers.into_values()).ok_or_else(disagreeing)
    }

    /// Asks these Sentinels.
    async fn gather(
        &self,
        transport: &Transport,
        endpoints: &[Endpoint],
        last_answers_within: Duration,
        answers: &mut RoundAnswers,
    ) {
        let asking = endpoints
            .iter()
            .map(async |endpoint| (endpoint, self.ask(transport, endpoint).await));
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut give_up = Instant::now() + ANSWER_TIMEOUT;
        while let Ok(Some((endpoint, answer))) = timeout_at(give_up, asking.next()).await {
            let named = answer.map(|answer| {
                let named = answer.primary.clone();
                answers.by_id.insert(answer.id.clone(), answer);
                named
            });
            answers.by_endpoint.insert(endpoint.clone(), named);
            if is_majority(&answers.by_id) {
                give_up = give_up.min(Instant::now() + last_answers_within);
            }
        }
        for endpoint in endpoints {
            let silent = || Err(Failure::timed_out().before_any_command());
            let entry = answers.by_endpoint.entry(endpoint.clone());
            entry.or_insert_with(silent);
        }
    }

    /// Whether no answer had a larger epoch lately: those that knew of the last failover may not answer this time. If all
    /// Sentinels answer, none is missing that could know of one: then they were set up anew.
    fn is_latest(&self, epoch: u64, all_answer: bool) -> bool {
        let mut latest = self.latest.lock().expect(UNPOISONED);
        let is_behind = latest.is_some_and(|(known, seen_at)| {
            epoch < known && !all_answer && seen_at.elapsed() < EPOCH_KNOWN_FOR
        });
        if !is_behind {
            *latest = Some((epoch, Instant::now()));
        }
        !is_behind
    }

    /// The Sentinels of the URL, and all that share a name there.
    async fn addresses(&self) -> BTreeSet<Endpoint> {
        let resolving = self.seeds.iter().map(resolve);
        join_all(resolving).await.into_iter().flatten().collect()
    }

    async fn ask(
        &self,
        transport: &Transport,
        endpoint: &Endpoint,
    ) -> Result<SentinelAnswer, Failure> {
        let opening = transport.open(endpoint, &self.settings).await;
        let mut connection = opening.map_err(denied)?;
        let sentinel = |words: &[&str]| redis::cmd("SENTINEL").arg(words).to_owned();
        // While it leads a failover, a Sentinel shows the new epoch with the former address in MASTER.
        let commands = redis::pipe()
            .add_command(sentinel(&["MYID"]))
            .add_command(sentinel(&["MASTER", &self.primary]))
            .add_command(sentinel(&["GET-MASTER-ADDR-BY-NAME", &self.primary]))
            .add_command(sentinel(&["SENTINELS", &self.primary]))
            .to_owned();
        let answer: RedisResult<PipelineAnswer> = commands.query_async(&mut connection).await;
        let (id, state, primary, others) = answer.map_err(|error| refused(&error))?;
        let answer = SentinelAnswer::of(id, &state, primary, &others);
        answer.ok_or_else(|| Failure::corrupt("an invalid answer of a Sentinel"))
    }
}

impl SentinelAnswer {
    fn of(
        id: String,
        state: &Properties,
        (host, port): (String, String),
        others: &[Properties],
    ) -> Option<Self> {
        Some(Self {
            id,
            epoch: state.get("config-epoch")?.parse().ok()?,
            primary: (host, port.parse().ok()?),
            others: others.iter().filter_map(endpoint).collect(),
            quorum: state.get("quorum").and_then(|it| it.parse().ok())?,
        })
    }
}

fn endpoint(of: &Properties) -> Option<Endpoint> {
    Some((of.get("ip")?.clone(), of.get("port")?.parse().ok()?))
}

/// The addresses of a name that stands for several Sentinels. Any other stays as it is: with TLS, the certificate may be for
/// the name.
async fn resolve((host, port): &Endpoint) -> Vec<Endpoint> {
    let looking_up = lookup_host((host.as_str(), *port));
    let addresses: Vec<_> = match timeout(ANSWER_TIMEOUT, looking_up).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    match addresses.as_slice() {
        [] | [_] => vec![(host.clone(), *port)],
        several => {
            let several = several.iter();
            several.map(|it| (it.ip().to_string(), it.port())).collect()
        }
    }
}

/// Finds out why none of them answers: the time for an answer is too short to notice that one side alone uses TLS.
async fn explain_silence(transport: &Transport, named: &mut NamedPrimaries) {
    let is_silent = |named: &Result<_, Failure>| {
        let failure = named.as_ref().err();
        failure.is_some_and(|failure| failure.fault == Fault::Timeout)
    };
    let silent = named.iter_mut().filter(|(_, named)| is_silent(named));
    let explaining = silent.map(async |(endpoint, named)| {
        *named = Err(transport.why_silent(endpoint).await);
    });
    join_all(explaining).await;
}

/// Whether most of all Sentinels have answered, as far as those that have know the others.
fn is_majority(answers: &HashMap<String, SentinelAnswer>) -> bool {
    !answers.is_empty() && answers.len() > total(answers) / 2
}

/// How many Sentinels there are, as far as those that have answered know. One that was started a moment ago, or reset, knows
/// no others yet, but that there are as many as its quorum.
fn total(answers: &HashMap<String, SentinelAnswer>) -> usize {
    let known = answers
        .values()
        .map(|answer| answer.quorum.max(answer.others.len() + 1));
    known.max().unwrap_or(0)
}

/// The primary of the latest configuration. A Sentinel that was set up for another Redis may name that one with the same
/// epoch, so the most votes count; none if two have equally many.
fn elected(answers: impl Iterator<Item = SentinelAnswer>) -> Option<Endpoint> {
    let mut votes: BTreeMap<(u64, Endpoint), usize> = BTreeMap::new();
    for answer in answers {
        *votes.entry((answer.epoch, answer.primary)).or_default() += 1;
    }
    let latest = votes.keys().map(|(epoch, _)| *epoch).max()?;
    let mut votes: Vec<_> = votes
        .into_iter()
        .filter(|((epoch, _), _)| *epoch == latest)
        .map(|((_, primary), count)| (count, primary))
        .collect();
    votes.sort();
    let (most, primary) = votes.pop()?;
    let is_tie = votes.last().is_some_and(|(count, _)| *count == most);
    (!is_tie).then_some(primary)
}

#[cfg(test)]
mod tests;
