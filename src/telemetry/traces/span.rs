//! Spans: those that have begun, those that are recorded once they are over, and which one the current task runs within.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::Either;
use metrics::Counter;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::IS_BUILT_IN;
use super::context::{SpanContext, SpanId, TraceId, TraceParent, TraceState};

/// Begins the spans of requests, or none if nothing is traced. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Tracer {
    shared: Option<Arc<TracerShared>>,
}

pub(super) struct TracerShared {
    pub(super) queue: mpsc::Sender<Box<SpanRecord>>,
    /// Spans that the queue had no room for.
    pub(super) dropped: Counter,
    /// How many of a million requests are traced whose callers do not say.
    pub(super) sampled_per_million: u32,
}

/// What a span says about itself.
#[derive(Debug)]
pub struct SpanRecord {
    pub(super) context: SpanContext,
    pub(super) parent: Option<SpanId>,
    /// Whether the parent is of another process.
    pub(super) has_remote_parent: bool,
    pub(super) state: Option<TraceState>,
    pub(super) name: Cow<'static, str>,
    pub(super) kind: SpanKind,
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    pub(super) links: Vec<SpanContext>,
    pub(super) is_failed: bool,
}

/// What a span is a side of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// None: it is within this process.
    Internal = 1,
    /// It answers a request.
    Server = 2,
    /// It sends a request.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug)]
pub(super) enum AttributeValue {
    Text(Cow<'static, str>),
    Number(i64),
}

/// A span that has begun. It ends when this is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    scope: SpanScope,
    record: Option<Box<SpanRecord>>,
}

/// The span that something runs within. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct SpanScope {
    shared: Arc<TracerShared>,
    context: SpanContext,
    /// The state of the trace, which all of its spans have.
    state: Option<TraceState>,
    clock: TraceClock,
}

/// The time of the spans of one trace: the system's clock once, and from there on the monotonic one, so that no span ends
/// before it began.
#[derive(Clone, Copy, Debug)]
struct TraceClock {
    at: Instant,
    unix_ns: u64,
}

tokio::task_local! {
    static CURRENT: SpanScope;
}

/// The span that the current task runs within; none if it is not traced.
#[must_use]
pub fn current() -> Option<SpanScope> {
    match IS_BUILT_IN {
        true => CURRENT.try_with(SpanScope::clone).ok(),
        false => None,
    }
}

/// The same future within the span that this is called in, for one that another task will run.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    within(current(), future)
}

/// A future that runs within this span, if there is one.
pub fn within<F: Future>(scope: Option<SpanScope>, future: F) -> impl Future<Output = F::Output> {
    match scope {
        Some(scope) => Either::Left(scope.around(future)),
        None => Either::Right(future),
    }
}

impl Tracer {
    pub(super) fn new(shared: TracerShared) -> Self {
        let shared = Some(Arc::new(shared));
        Self { shared }
    }

    /// Whether anything is traced.
    #[must_use]
    pub fn is_on(&self) -> bool {
        IS_BUILT_IN && self.shared.is_some()
    }

    /// Begins the span of a request that came at this time, if it is to be traced: its caller decides, or chance.
    #[must_use]
    pub fn begin(
        &self,
        parent: Option<TraceParent>,
        kind: SpanKind,
        began: Instant,
    ) -> Option<OpenSpan> {
        let shared = self.shared.as_ref().filter(|_| IS_BUILT_IN)?;
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => fastrand::u32(..1_000_000) < shared.sampled_per_million,
        };
        if !is_sampled {
            return None;
        }
        let trace_id = parent.map_or_else(TraceId::random, |parent| parent.span.trace_id);
        let scope = SpanScope {
            shared: Arc::clone(shared),
            context: SpanContext {
                trace_id,
                span_id: SpanId::random(),
            },
            state: None,
            clock: TraceClock::start_at(began),
        };
        let mut record = scope.record_of(scope.context, kind, began);
        record.parent = parent.map(|parent| parent.span.span_id);
        record.has_remote_parent = parent.is_some();
        let record = Some(record);
        Some(OpenSpan { scope, record })
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tracer = formatter.debug_struct("Tracer");
        tracer.field("is_on", &self.is_on()).finish()
    }
}

impl fmt::Debug for TracerShared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TracerShared")
    }
}

impl OpenSpan {
    /// The scope of what runs within it.
    #[must_use]
    pub fn scope(&self) -> SpanScope {
        self.scope.clone()
    }

    /// The trace that it is part of.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.scope.context.trace_id
    }

    /// Gives it the state of the trace of its caller. Spans below it have it too, if they begin later.
    pub fn keep_state(&mut self, state: TraceState) {
        if let Some(record) = &mut self.record {
            record.state = Some(state.clone());
        }
        self.scope.state = Some(state);
    }

    /// Describes it.
    pub fn describe(&mut self, describe: impl FnOnce(&mut SpanRecord)) {
        if let Some(record) = &mut self.record {
            describe(record);
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            self.scope.end(record);
        }
    }
}

impl SpanScope {
    /// Which span it is.
    #[must_use]
    pub fn context(&self) -> SpanContext {
        self.context
    }

    /// Runs a future within the span.
    pub fn around<F: Future>(self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self, future)
    }

    /// Records what began at this time and is over now, as a span below this one.
    pub fn record(&self, kind: SpanKind, began: Instant, describe: impl FnOnce(&mut SpanRecord)) {
        let context = SpanContext {
            span_id: SpanId::random(),
            ..self.context
        };
        let mut record = self.record_of(context, kind, began);
        record.parent = Some(self.context.span_id);
        describe(&mut record);
        self.end(record);
    }

    fn record_of(&self, context: SpanContext, kind: SpanKind, began: Instant) -> Box<SpanRecord> {
        Box::new(SpanRecord {
            context,
            parent: None,
            has_remote_parent: false,
            state: self.state.clone(),
            name: Cow::Borrowed(""),
            kind,
            began_ns: self.clock.unix_ns(began),
            ended_ns: 0,
            attributes: Vec::with_capacity(16),
            links: Vec::new(),
            is_failed: false,
        })
    }

    /// Ends a span. No request waits until the queue has room.
    fn end(&self, mut record: Box<SpanRecord>) {
        record.ended_ns = self.clock.unix_ns(Instant::now());
        if self.shared.queue.try_send(record).is_err() {
            self.shared.dropped.increment(1);
        }
    }
}

impl SpanRecord {
    /// Names it. Of all values of a name there should be few.
    pub fn name(&mut self, name: impl Into<Cow<'static, str>>) {
        self.name = name.into();
    }

    /// Adds an attribute.
    pub fn text(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>) {
        self.attributes
            .push((key, AttributeValue::Text(value.into())));
    }

    /// Adds an attribute.
    pub fn number(&mut self, key: &'static str, value: impl Into<i64>) {
        self.attributes
            .push((key, AttributeValue::Number(value.into())));
    }

    /// Adds a link to a span that had something to do with it, in this trace or in another one.
    pub fn link(&mut self, to: SpanContext) {
        self.links.push(to);
    }

    /// Marks it as failed.
    pub fn fail(&mut self) {
        self.is_failed = true;
    }
}

impl TraceClock {
    fn start_at(at: Instant) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = since_epoch.unwrap_or_default().as_nanos();
        let unix_ns = now_ns.saturating_sub(at.elapsed().as_nanos());
        Self {
            at,
            // It fits until the year 2554.
            unix_ns: u64::try_from(unix_ns).unwrap_or(u64::MAX),
        }
    }

    fn unix_ns(self, at: Instant) -> u64 {
        let later = at.saturating_duration_since(self.at).as_nanos() as u64;
        let earlier = self.at.saturating_duration_since(at).as_nanos() as u64;
        self.unix_ns + later - earlier
    }
}
