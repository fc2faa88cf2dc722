//! The request fields, described once and used as body members, query parameters and headers.

use serde_json::json;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn, ParameterStyle};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, OneOfBuilder, Schema, SchemaType,
};
use utoipa::openapi::{
    ContentBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, Required, SchemaFormat, Type,
};

use crate::domain::{HoldCount, LockName, LockNames, Owner, Share};
use crate::http::locks::{
    ACQUIRE_FIELDS, ACQUIRE_SEVERAL_FIELDS, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, RENEW_FIELDS,
    RENEW_SEVERAL_FIELDS,
};
use crate::http::wire::ModeView;

/// The syntax of durations; their bounds are configured.
const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";
/// The syntax of lock names. Portable patterns cannot express that no segment may be `.` or `..`.
const NAME: &str = "^[A-Za-z0-9._~:@+,=-]+(/[A-Za-z0-9._~:@+,=-]+)*$";
/// The same where a comma would look like a list.
const NAME_IN_FORM: &str = "^[A-Za-z0-9._~:@+=-]+(/[A-Za-z0-9._~:@+=-]+)*$";

/// The bodies of requests, as schemas with names: without them, generators of clients make up names and repeat enums.
pub(super) const BODIES: [RequestSchema; 4] = [ACQUIRE, RENEW, ACQUIRE_SEVERAL, RENEW_SEVERAL];

/// The body of an acquire.
pub(super) const ACQUIRE: RequestSchema = RequestSchema {
    name: "AcquireRequest",
    fields: &ACQUIRE_FIELDS,
};
/// The body of a renewal.
pub(super) const RENEW: RequestSchema = RequestSchema {
    name: "RenewRequest",
    fields: &RENEW_FIELDS,
};
/// The body of an acquire of several locks.
pub(super) const ACQUIRE_SEVERAL: RequestSchema = RequestSchema {
    name: "AcquireSeveralRequest",
    fields: &ACQUIRE_SEVERAL_FIELDS,
};
/// The body of a renewal of several leases.
pub(super) const RENEW_SEVERAL: RequestSchema = RequestSchema {
    name: "RenewSeveralRequest",
    fields: &RENEW_SEVERAL_FIELDS,
};

/// The body of a request: a JSON object with any of the fields, and `names` where it is one of them.
#[derive(Clone, Copy)]
pub(super) struct RequestSchema {
    pub(super) name: &'static str,
    fields: &'static [&'static str],
}

impl RequestSchema {
    pub(super) fn schema(self) -> Schema {
        let nothing_else = AdditionalProperties::FreeForm(false);
        let object = ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(nothing_else));
        let object = self
            .fields
            .iter()
            .fold(object, |object, name| object.property(*name, or_null(name)));
        match self.has_names() {
            true => object.required("names").into(),
            false => object.into(),
        }
    }

    /// The body of an operation. Clients that are not generated may send a form, or the query string, instead.
    pub(super) fn body(self, example: serde_json::Value) -> RequestBody {
        let json = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(self.name)))
            .example(Some(example));
        let (description, is_required) = match self.has_names() {
            true => ("The names, and optional fields.", Required::True),
            false => (
                "All fields are optional, and so is the body.",
                Required::False,
            ),
        };
        RequestBodyBuilder::new()
            .description(Some(description))
            .required(Some(is_required))
            .content("application/json", json.build())
            .build()
    }

    fn has_names(self) -> bool {
        self.fields.contains(&"names")
    }
}

/// Fields as query parameters, except for those that are not allowed in the query string.
pub(super) fn query(fields: &[&'static str]) -> Vec<Parameter> {
    let is_allowed = |name: &&str| !["token", "metadata"].contains(name);
    let fields = fields.iter().copied().filter(is_allowed);
    fields
        .map(|name| parameter(name, ParameterIn::Query))
        .collect()
}

/// The name of the lock, in the path.
pub(super) fn name() -> Parameter {
    let schema = a_name();
    ParameterBuilder::new()
        .name("name")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(
            "The name of the lock. Segments are separated by `/`, which may be written as such or as `%2F`; no segment may \
             be empty, `.` or `..`.",
        ))
        .schema(Some(schema))
        .example(Some(json!("orders/42")))
        .build()
}

/// The names of several locks, in the query string.
pub(super) fn names() -> Parameter {
    ParameterBuilder::new()
        .name("names")
        .parameter_in(ParameterIn::Query)
        .required(Required::True)
        .style(Some(ParameterStyle::Form))
        .explode(Some(true))
        .schema(Some(array_of(a_name().pattern(Some(NAME_IN_FORM)))))
        .example(Some(json!(["acct/1", "acct/2"])))
        .build()
}

/// The event after which to resume a stream.
pub(super) fn last_event_id() -> Parameter {
    ParameterBuilder::new()
        .name("Last-Event-ID")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "The id of the last event that the client received; the stream resumes after it, or sends `reset`.",
        ))
        .schema(Some(text("The id of an event.")))
        .build()
}

/// The token, in its header.
pub(super) fn token_header(description: &str) -> Parameter {
    ParameterBuilder::new()
        .name("Lock-Token")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        // No format: a generated client would pass a UUID object to its HTTP library, which takes only text.
        .schema(Some(text("A UUID.")))
        .build()
}

fn parameter(name: &'static str, location: ParameterIn) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(location)
        .required(Required::False)
        .schema(Some(schema(name)))
        .build()
}

/// The type and description of a field. The names are those that the handlers take.
///
/// Defaults are only in the descriptions: generators take a member with a default for one that is always sent.
fn schema(name: &str) -> ObjectBuilder {
    of_leases(name)
        .or_else(|| of_claims(name))
        .or_else(|| of_other_requests(name))
        .unwrap_or_else(|| unreachable!("the field {name} has no description"))
}

/// A member of a JSON object, where `null` is the same as leaving it out.
fn or_null(name: &str) -> RefOr<Schema> {
    match name {
        "names" => array_of(a_name()).into(),
        "mode" => OneOfBuilder::new()
            .item(Ref::from_schema_name(ModeView::name()))
            .item(ObjectBuilder::new().schema_type(Type::Null))
            .description(Some(
                "Whether the claim holds the lock alone or together with other shared claims; default: `exclusive`. A renewal \
                 can downgrade from `exclusive` to `shared`.",
            ))
            .into(),
        _ => {
            let mut object = schema(name).build();
            if let SchemaType::Type(of_values) = &object.schema_type {
                object.schema_type = SchemaType::from_iter([of_values.clone(), Type::Null]);
            }
            object.into()
        }
    }
}

fn array_of(names: ObjectBuilder) -> Schema {
    ArrayBuilder::new()
        .items(names)
        .min_items(Some(1))
        .max_items(Some(LockNames::COUNT_MAX))
        .unique_items(true)
        .description(Some(
            "The names of the locks, without duplicates, in any order.",
        ))
        .into()
}

fn a_name() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(LockName::BYTES_MAX))
        .pattern(Some(NAME))
}

/// The fields for how a lock is waited for and held.
fn of_leases(name: &str) -> Option<ObjectBuilder> {
    Some(match name {
        "wait" => duration(
            "How long to wait for the lock in the queue; capped at the configured maximum (55s unless configured otherwise). \
             Default: 0s; for a stream, as long as the connection lives.",
        ),
        "limit" => number(
            1,
            Share::LIMIT_MAX,
            "The total number of permits; without it, a shared claim is one of any number of readers. Only with \
             `mode=shared`. With a `quorum:` store, at most 1,000, and at most 10,000 divided by the number of locks.",
        ),
        "permits" => number(
            1,
            Share::LIMIT_MAX,
            "How many permits the claim takes, at most `limit`. Default: 1. Only with `mode=shared`.",
        ),
        "fair" => ObjectBuilder::new()
            .schema_type(Type::Boolean)
            .description(Some(
                "Whether the claim waits behind earlier waiters (default: true); with `false`, it takes a free lock even if others wait.",
            )),
        _ => return None,
    })
}

fn of_claims(name: &str) -> Option<ObjectBuilder> {
    Some(match name {
        "ttl" => duration(
            "How long the lease lasts without renewal; 100ms to 1h unless configured otherwise. Default: 30s for an \
             acquire, the TTL of the claim for a renewal.",
        ),
        "owner" => short(
            "A public text that says who holds the lock; at most 256 bytes, without control characters, line separators, \
             and characters that change the direction of text or are invisible. It proves nothing.",
        ),
        "metadata" => ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(AdditionalProperties::FreeForm(true)))
            .description(Some(
                "More public data about the holder; at most 4 KiB, kept byte for byte.",
            )),
        "token" => text("Identifies the claim: any UUID except nil and max. Secret.")
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid))),
        "hold_count" => number(
            1,
            HoldCount::MAX.into(),
            "The hold count (reentrancy depth) to acquire, or to reduce to with a release.",
        ),
        "min_hold" => duration(
            "The lock stays closed at least this long after the grant, even if it is released earlier; at most the longest \
             TTL.",
        ),
        "max_hold" => duration(
            "The longest total time of the lease, across renewals; at most 30 days unless configured otherwise.",
        ),
        "lock_delay" => duration(
            "How long the lock stays closed after this lease expires or is evicted; at most 60s.",
        ),
        _ => return None,
    })
}

fn of_other_requests(name: &str) -> Option<ObjectBuilder> {
    Some(match name {
        "force" => ObjectBuilder::new()
            .schema_type(Type::Boolean)
            .description(Some(
                "Evict all holders of the lock. Needs no token. Default: false.",
            )),
        "reason" => {
            short("Why the holders are evicted; their next request returns it. Only with `force`.")
        }
        "prefix" => {
            text("Only locks whose names begin with this.").max_length(Some(LockName::BYTES_MAX))
        }
        "page_size" => ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .description(Some(format!(
                "The most locks on a page; capped at {PAGE_SIZE_MAX}. Default: {PAGE_SIZE_DEFAULT}."
            ))),
        "page_token" => text("The `next_page_token` of the previous page."),
        "verbose" => text("List the single checks; `?verbose` alone means `true`."),
        _ => return None,
    })
}

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

fn duration(description: &str) -> ObjectBuilder {
    text(description).pattern(Some(DURATION))
}

fn short(description: &str) -> ObjectBuilder {
    text(description).max_length(Some(Owner::BYTES_MAX))
}

fn number(min: u32, max: u32, description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(min))
        .maximum(Some(max))
        .description(Some(description))
}
