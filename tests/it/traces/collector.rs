//! A collector of traces. It reads what it gets with the types that OpenTelemetry generates from its definition of OTLP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::eventually;

/// A collector that listens.
pub(super) struct Collector {
    /// Its URL, without the path for traces.
    pub(super) url: String,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<std::io::Result<()>>,
}

struct Shared {
    received: Mutex<Vec<(HeaderMap, Bytes)>>,
    /// How it answers; `None` for never.
    status: Mutex<Option<StatusCode>>,
}

impl Collector {
    pub(super) async fn start() -> Self {
        Self::answering(Some(StatusCode::OK)).await
    }

    /// One that answers with this status, or never.
    pub(super) async fn answering(status: Option<StatusCode>) -> Self {
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            status: Mutex::new(status),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(receive));
        let router = router.with_state(Arc::clone(&shared));
        #[allow(
            clippy::disallowed_methods,
            reason = "a server of the test has no slow clients"
        )]
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            shared,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub(super) fn answer_with(&self, status: StatusCode) {
        *self.shared.status.lock().unwrap() = Some(status);
    }

    /// What was received: headers and bodies.
    pub(super) fn received(&self) -> Vec<(HeaderMap, Bytes)> {
        self.shared.received.lock().unwrap().clone()
    }

    /// The attributes of the process that sent the last spans.
    pub(super) fn resource(&self) -> BTreeMap<String, String> {
        let request = self.requests().pop().expect("something was received");
        let resource = request.resource_spans[0].resource.clone();
        texts(&resource.expect("it says who sends").attributes)
    }

    /// All spans, in the order in which they ended.
    pub(super) fn spans(&self) -> Vec<Span> {
        let requests = self.requests().into_iter();
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The first span with this name, once it has come.
    pub(super) async fn span(&self, name: &str) -> Span {
        self.spans_named(name, 1).await.remove(0)
    }

    /// The spans with this name, once so many have come.
    pub(super) async fn spans_named(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans {name}"), async || {
            let mut spans = self.spans();
            spans.retain(|span| span.name == name);
            (spans.len() >= count).then_some(spans)
        })
        .await
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let received = self.received().into_iter();
        let decoded = received.map(|(_, body)| ExportTraceServiceRequest::decode(body));
        decoded
            .map(|request| request.expect("it is OTLP"))
            .collect()
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    shared.received.lock().unwrap().push((headers, body));
    let status = *shared.status.lock().unwrap();
    match status {
        Some(status) => status,
        None => std::future::pending().await,
    }
}

/// Attributes as texts, whatever their type.
pub(super) fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let texts = attributes.iter().map(|pair| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
        let text = match value {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => panic!("{} is {other:?}", pair.key),
        };
        (pair.key.clone(), text)
    });
    texts.collect()
}

/// The attributes of the span.
pub(super) fn attributes(span: &Span) -> BTreeMap<String, String> {
    texts(&span.attributes)
}
