//! Sends ended spans to the collector, on a thread of its own. Whatever the collector does, requests do not notice, and the
//! end of the process waits for it no longer than [`FLUSH_TIMEOUT`].

use std::io;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use metrics::Counter;
use nix::unistd::gethostname;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::otlp::{self, EncodedResource};
use super::span::{SpanRecord, Tracer, TracerShared};
use crate::backoff::Backoff;
use crate::client::{Client, HttpConnection, NoAnswer, ServiceUrl};
use crate::config::TracesConfig;
use crate::telemetry::Metrics;

/// How long the process waits at its end for the last spans to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long spans are gathered before they are sent. Meanwhile a span that ends wakes nobody.
const GATHER: Duration = Duration::from_millis(200);
/// How often it is looked at whether there are enough of them.
const GATHER_STEP: Duration = Duration::from_millis(20);
/// The most spans that are sent at once: about half a megabyte.
const BATCH_MAX: usize = 1_024;
/// How long the collector has for the spans that are sent at once, all tries together.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause between two tries; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The path below the endpoint that takes traces.
const PATH: &str = "/v1/traces";
/// The answers after which the same spans may be accepted later (OTLP/HTTP, retryable response codes).
const TEMPORARY: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// The thread that sends spans.
#[derive(Debug)]
pub struct Exporter {
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
}

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The authorities or the headers for the collector cannot be used.
    #[error("{0}")]
    Config(String),
    /// The system cannot start the thread.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// What runs on the thread.
struct ExportLoop {
    spans: mpsc::Receiver<Box<SpanRecord>>,
    /// How many spans are sent without gathering more: the queue must not become full meanwhile.
    enough: usize,
    stop: CancellationToken,
    resource: EncodedResource,
    client: Client,
    path: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    connection: Option<HttpConnection>,
    counts: SpanCounts,
    /// Whether the last export failed, which has been reported.
    is_failing: bool,
}

/// What became of spans.
struct SpanCounts {
    exported: Counter,
    queue_full: Counter,
    export_failed: Counter,
}

/// Why spans were not accepted.
struct ExportFailure {
    problem: String,
    is_temporary: bool,
}

impl Exporter {
    /// Starts the thread, if there is a collector, and returns what begins spans. The series exist without one, too.
    ///
    /// # Errors
    /// The authorities for the collector cannot be used, or the system cannot start the thread.
    pub fn start(
        config: Option<&TracesConfig>,
        metrics: &Metrics,
    ) -> Result<(Tracer, Option<Self>), ExporterError> {
        let counts = SpanCounts::new(metrics);
        let Some(config) = config else {
            return Ok((Tracer::default(), None));
        };
        let (queue, spans) = mpsc::channel(config.spans_max);
        let tracer = Tracer::new(TracerShared {
            queue,
            dropped: counts.queue_full.clone(),
            sampled_per_million: config.sampled_per_million,
        });
        let stop = CancellationToken::new();
        let export_loop = ExportLoop::new(config, spans, stop.clone(), counts);
        let export_loop = export_loop.map_err(ExporterError::Config)?;
        let (sender, ended) = oneshot::channel();
        export_loop.spawn(sender)?;
        Ok((tracer, Some(Self { stop, ended })))
    }

    /// Has the spans sent that have ended so far, at the end of the process. Spans that cannot be sent in time are lost.
    pub async fn finish(self) {
        self.stop.cancel();
        let _ = timeout(FLUSH_TIMEOUT, self.ended).await;
    }
}

impl SpanCounts {
    fn new(metrics: &Metrics) -> Self {
        let dropped = |reason| {
            let help = "Spans that were not exported, because the queue was full or the collector did not take them.";
            metrics.counter("leasehold_spans_dropped_total", help, &[("reason", reason)])
        };
        let help = "Spans in the requests that the collector has accepted.";
        Self {
            exported: metrics.counter("leasehold_spans_exported_total", help, &[]),
            queue_full: dropped("queue_full"),
            export_failed: dropped("export_failed"),
        }
    }
}

impl ExportLoop {
    fn new(
        config: &TracesConfig,
        spans: mpsc::Receiver<Box<SpanRecord>>,
        stop: CancellationToken,
        counts: SpanCounts,
    ) -> Result<Self, String> {
        let url = ServiceUrl::parse(&config.endpoint)?;
        let is_complete = config.endpoint.trim_end_matches('/').ends_with(PATH);
        let headers = config.headers.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let headers = headers.collect::<Option<_>>();
        Ok(Self {
            spans,
            enough: BATCH_MAX.min(config.spans_max / 2),
            stop,
            resource: resource(&config.service_name),
            client: Client::new(url, None, config.authorities.as_deref(), None)?,
            path: if is_complete { "" } else { PATH },
            headers: headers.ok_or("traces.headers has what cannot be sent in a header")?,
            connection: None,
            counts,
            is_failing: false,
        })
    }

    fn spawn(mut self, ended: oneshot::Sender<()>) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let exporting = move || {
            runtime.block_on(self.run());
            // Nobody waits any more if the time for it is over.
            let _ = ended.send(());
            // A name that is just being looked up is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("traces".to_owned());
        thread.spawn(exporting).map(drop)
    }

    async fn run(&mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.gather(&mut batch).await {
            self.export(&batch).await;
            batch.clear();
        }
    }

    /// Waits for spans. Returns whether there are any, which is false once the process ends.
    #[expect(clippy::vec_box, reason = "the queue hands them over as they are")]
    async fn gather(&mut self, batch: &mut Vec<Box<SpanRecord>>) -> bool {
        tokio::select! {
            biased;
            _ = self.spans.recv_many(batch, 1) => {}
            () = self.stop.cancelled() => {}
        }
        let gather_until = Instant::now() + GATHER;
        while self.spans.len() + batch.len() < self.enough
            && Instant::now() < gather_until
            && !self.stop.is_cancelled()
        {
            tokio::select! {
                () = sleep(GATHER_STEP) => {}
                () = self.stop.cancelled() => {}
            }
        }
        while batch.len() < BATCH_MAX
            && let Ok(record) = self.spans.try_recv()
        {
            batch.push(record);
        }
        !batch.is_empty()
    }

    /// Sends spans, with retries until their time is over, and counts what became of them.
    async fn export(&mut self, batch: &[Box<SpanRecord>]) {
        let body = Bytes::from(otlp::request(&self.resource, batch));
        let give_up_at = Instant::now() + EXPORT_TIMEOUT;
        let mut backoff = Backoff::default();
        let count = batch.len() as u64;
        let failure = loop {
            let sent = timeout_at(give_up_at, self.send(&body)).await;
            let sent = sent.unwrap_or_else(|_| Err(self.too_late()));
            let failure = match sent {
                Ok(()) => {
                    self.counts.exported.increment(count);
                    return self.succeeded();
                }
                Err(failure) => failure,
            };
            let pause = backoff.next(PAUSE_MIN, PAUSE_MAX);
            let is_over = Instant::now() + pause >= give_up_at;
            if !failure.is_temporary || is_over || self.stop.is_cancelled() {
                break failure;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        };
        self.counts.export_failed.increment(count);
        self.failed(&failure.problem);
    }

    /// Sends spans once, over the connection of the last time if it is still open.
    async fn send(&mut self, body: &Bytes) -> Result<(), ExportFailure> {
        // Taken out, so that a connection whose answer is still to come is not used again.
        let kept = self.connection.take().filter(HttpConnection::is_open);
        if let Some(mut connection) = kept
            && let Ok((status, _, _)) = connection.exchange(self.request(body)).await
        {
            self.connection = Some(connection);
            return self.judge(status);
        }
        let connecting = self.client.connect().await;
        let mut connection = connecting.map_err(|error| no_answer(&error))?;
        let (status, _, _) = connection
            .exchange(self.request(body))
            .await
            .map_err(|error| no_answer(&self.client.broken(error)))?;
        self.connection = Some(connection);
        self.judge(status)
    }

    fn judge(&self, status: StatusCode) -> Result<(), ExportFailure> {
        match status.is_success() {
            true => Ok(()),
            false => Err(ExportFailure {
                problem: format!("{} answers {status}", self.client.url()),
                is_temporary: TEMPORARY.contains(&status),
            }),
        }
    }

    fn too_late(&self) -> ExportFailure {
        ExportFailure {
            problem: format!("{} did not answer in time", self.client.url()),
            is_temporary: false,
        }
    }

    fn request(&self, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.client.url().target(self.path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.client.url().host_header());
        let content_type = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, content_type);
        let agent = HeaderValue::from_static(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, agent);
        headers.extend(self.headers.iter().cloned());
        request
    }

    /// Logs the first of several failures, and the success after them.
    fn failed(&mut self, problem: &str) {
        if !self.is_failing {
            tracing::warn!(
                problem,
                "spans cannot be exported and are dropped; requests go on"
            );
        }
        self.is_failing = true;
    }

    fn succeeded(&mut self) {
        if self.is_failing {
            tracing::info!("spans are exported again");
        }
        self.is_failing = false;
    }
}

/// There was no answer.
fn no_answer(error: &NoAnswer) -> ExportFailure {
    ExportFailure {
        problem: error.explain("traces.ca_file"),
        is_temporary: !error.is_final(),
    }
}

/// This process, by the semantic conventions for resources.
fn resource(service_name: &str) -> EncodedResource {
    let host = gethostname().unwrap_or_default();
    EncodedResource::new([
        ("service.name", service_name.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", Uuid::new_v4().to_string()),
        ("host.name", host.to_string_lossy().into_owned()),
    ])
}
