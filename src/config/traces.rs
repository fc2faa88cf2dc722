//! Where spans are sent, and of which requests. `telemetry` sends them.

use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;

use super::error::ConfigError;
use super::secret::Secret;
use super::settings::{KEPT_MAX, Settings, UpperBound};
use super::tls;
use crate::client::ServiceUrl;
use crate::telemetry::traces::IS_BUILT_IN;

pub(super) const ENDPOINT: &str = "traces.endpoint";
const HEADERS: &str = "traces.headers";
const CA_FILE: &str = "traces.ca_file";
const SERVICE_NAME: &str = "traces.service_name";
const SAMPLED: &str = "traces.sampled_per_million";

/// All requests.
const SAMPLED_MAX: UpperBound = UpperBound(1_000_000, "a million of a million are all requests");

/// Those that the request to the collector has already, and those that belong to a connection.
const HEADERS_OF_REQUEST: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Traces.
#[derive(Debug, Clone)]
pub struct TracesConfig {
    /// The URL of the collector, without or with the path for traces.
    pub endpoint: String,
    /// Names and values of headers that it wants.
    pub headers: Vec<(String, Secret)>,
    /// The only authorities that are trusted; `None` for those of the system.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// What the traces call this service.
    pub service_name: String,
    /// How many of a million requests are traced, of those whose callers do not say.
    pub sampled_per_million: u32,
    /// How many ended spans may wait to be sent.
    pub spans_max: usize,
}

impl TracesConfig {
    /// `None` if nothing is traced.
    pub(super) fn parse(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        // They are checked whether or not anything is traced, like all numbers.
        let sampled = settings.whole(SAMPLED, SAMPLED_MAX)?;
        let spans_max = settings.count("traces.spans_max", KEPT_MAX)?;
        let [endpoint, ca_file, service_name] =
            [ENDPOINT, CA_FILE, SERVICE_NAME].map(|name| settings.text(name));
        if endpoint.is_empty() {
            let without_effect = [HEADERS, CA_FILE];
            let set = without_effect
                .iter()
                .find(|name| !settings.text(name).is_empty());
            return match set {
                Some(name) => {
                    Err(settings.invalid(name, format!("has no effect without {ENDPOINT}")))
                }
                None => Ok(None),
            };
        }
        if !IS_BUILT_IN {
            let problem = "this binary cannot send traces, because it was built without the feature otlp; leave it out, \
                           or build with the default features";
            return Err(settings.invalid(ENDPOINT, problem));
        }
        check_endpoint(endpoint).map_err(|problem| settings.invalid(ENDPOINT, problem))?;
        if service_name.is_empty() {
            return Err(settings.invalid(SERVICE_NAME, "is empty; write one like \"leasehold\""));
        }
        let authorities = match ca_file {
            "" => None,
            file => Some(
                tls::certificates_in(file.as_ref())
                    .map_err(|problem| settings.invalid(CA_FILE, problem))?,
            ),
        };
        Ok(Some(Self {
            endpoint: endpoint.to_owned(),
            headers: headers(settings)?,
            authorities,
            service_name: service_name.to_owned(),
            sampled_per_million: u32::try_from(sampled).unwrap_or(u32::MAX),
            spans_max,
        }))
    }
}

/// Refuses what the client that sends the spans would refuse, and also what that would complete or what may be a secret.
fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let example = "write one like http://127.0.0.1:4318";
    if endpoint.contains(['@', '?', '#']) {
        // It is not quoted, because such a part may be a password.
        return Err(format!(
            "has a user, a query or a fragment; {example}, and what the collector asks for into {HEADERS}"
        ));
    }
    let has_scheme = ["http://", "https://"]
        .iter()
        .any(|scheme| endpoint.starts_with(scheme));
    match has_scheme && ServiceUrl::parse(endpoint).is_ok() {
        true => Ok(()),
        false => Err(format!(
            "\"{endpoint}\" is not the URL of a collector; {example}"
        )),
    }
}

/// The headers, as `OTEL_EXPORTER_OTLP_HEADERS` has them elsewhere: `name=value,name=value`, the values percent-encoded.
fn headers(settings: &Settings) -> Result<Vec<(String, Secret)>, ConfigError> {
    let text = settings.text(HEADERS);
    let pairs = text.split(',').map(str::trim);
    let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_of_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let name = name.trim();
        let is_fit = !name.is_empty() && name.bytes().all(is_of_name);
        (is_fit && value.bytes().all(is_of_value))
            .then(|| (name.to_ascii_lowercase(), Secret::new(value)))
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    // The text is a secret, so it is not quoted.
    let pairs = pairs.ok_or_else(|| {
        let problem = "is not a list of headers; write it like \"authorization=Bearer%20abc,x-team=locks\", with values \
                       of ASCII, percent-encoded";
        settings.invalid(HEADERS, problem)
    })?;
    let is_own = |name: &String| HEADERS_OF_REQUEST.contains(&name.as_str());
    if let Some((own, _)) = pairs.iter().find(|(name, _)| is_own(name)) {
        let problem =
            format!("has the header \"{own}\", which Leasehold sets itself; leave it out");
        return Err(settings.invalid(HEADERS, problem));
    }
    Ok(pairs)
}
