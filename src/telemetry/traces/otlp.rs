//! The encoding of spans: the message `ExportTraceServiceRequest` of OTLP, as Protocol Buffers. It has only the fields that
//! are used here; the numbers are those of opentelemetry-proto, which never change.

use super::context::SpanContext;
use super::span::{AttributeValue, SpanRecord};

/// The flags of a span that is recorded, as all are that are sent.
const SAMPLED: u32 = 1;
/// Whether the parent is of another process is known, and it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
const STATUS_ERROR: u64 = 2;

/// The process that sends spans, encoded once.
pub(super) struct EncodedResource(Vec<u8>);

impl EncodedResource {
    /// A process with these attributes.
    pub(super) fn new<'a>(attributes: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let mut resource = ProtoMessage::default();
        for (key, value) in attributes {
            resource.message(1, |pair| pair.attribute(key, &value.into()));
        }
        Self(resource.0)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// What a span takes, roughly.
const SPAN_BYTES: usize = 512;

/// The request that exports these spans.
pub(super) fn request(resource: &EncodedResource, spans: &[Box<SpanRecord>]) -> Vec<u8> {
    let mut request = ProtoMessage(Vec::with_capacity(SPAN_BYTES * (spans.len() + 1)));
    request.message(1, |of_resource| {
        of_resource.bytes(1, &resource.0);
        of_resource.message(2, |of_scope| {
            of_scope.message(1, |scope| {
                scope.bytes(1, env!("CARGO_PKG_NAME").as_bytes());
                scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for record in spans {
                of_scope.message(2, |span| span.span(record));
            }
        });
    });
    request.0
}

/// A message, field by field.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn span(&mut self, record: &SpanRecord) {
        self.bytes(1, &record.context.trace_id.to_bytes());
        self.bytes(2, &record.context.span_id.to_bytes());
        if let Some(state) = &record.state {
            self.bytes(3, state.as_str().as_bytes());
        }
        if let Some(parent) = record.parent {
            self.bytes(4, &parent.to_bytes());
        }
        self.bytes(5, record.name.as_bytes());
        self.number(6, record.kind as u64);
        self.fixed64(7, record.began_ns);
        self.fixed64(8, record.ended_ns);
        for (key, value) in &record.attributes {
            self.message(9, |pair| pair.attribute(key, value));
        }
        for link in &record.links {
            self.message(13, |message| message.link(*link));
        }
        if record.is_failed {
            self.message(15, |status| status.number(3, STATUS_ERROR));
        }
        let of_parent = match record.has_remote_parent {
            true => HAS_IS_REMOTE | IS_REMOTE,
            false => HAS_IS_REMOTE,
        };
        self.fixed32(16, SAMPLED | of_parent);
    }

    fn attribute(&mut self, key: &str, value: &AttributeValue) {
        self.bytes(1, key.as_bytes());
        self.message(2, |any_value| match value {
            AttributeValue::Text(text) => any_value.bytes(1, text.as_bytes()),
            // A negative one has ten bytes, as its two's complement.
            AttributeValue::Number(number) => any_value.number(3, *number as u64),
        });
    }

    fn link(&mut self, to: SpanContext) {
        self.bytes(1, &to.trace_id.to_bytes());
        self.bytes(2, &to.span_id.to_bytes());
        self.fixed32(6, SAMPLED | HAS_IS_REMOTE);
    }

    /// A message within this one. Its length comes first, and is known last: most need one byte for it.
    fn message(&mut self, field: u8, fill: impl FnOnce(&mut Self)) {
        self.tag(field, 2);
        let at = self.0.len();
        self.0.push(0);
        fill(self);
        match self.0.len() - at - 1 {
            length @ ..0x80 => self.0[at] = length as u8,
            length => {
                let mut longer = Self::default();
                longer.varint(length as u64);
                self.0.splice(at..=at, longer.0);
            }
        }
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, field: u8, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u8, number: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u8, number: u32) {
        self.tag(field, 5);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn tag(&mut self, field: u8, wire_type: u8) {
        self.varint(u64::from(field) << 3 | u64::from(wire_type));
    }

    /// Seven bits a byte, the lowest first; all but the last have the highest bit set.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}
