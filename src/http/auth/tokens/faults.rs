//! Why a token is refused, and the text for its sender.

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum TokenFault {
    /// It has too many bytes.
    TooLong,
    /// It is not a JSON Web Token that is signed with an algorithm that exists.
    Malformed,
    /// It is for another purpose.
    Type,
    /// Its algorithm is not accepted, or not with its key.
    Algorithm,
    /// The issuer has no key of this name.
    UnknownKey,
    /// It names no key, and the issuer has several.
    UnnamedKey,
    /// The keys of the issuer are not known.
    NoKeys,
    /// The signature is not of the key.
    Signature,
    /// A claim is missing, or has another type or an impossible value.
    Claims,
    /// It has ended.
    Expired,
    /// It begins later, or was issued later than now.
    NotYetValid,
    /// It lives longer than is accepted.
    LivesTooLong,
    /// It is of another issuer.
    Issuer,
    /// It is for another service.
    Audience,
    /// No principal has its subject.
    Subject,
}

impl TokenFault {
    /// The text for the sender. It never repeats anything of the token, nor of the configuration.
    pub(in crate::http) fn detail(self) -> &'static str {
        match self {
            Self::TooLong => "the token is longer than this service accepts (jwt.token_bytes_max)",
            Self::Malformed => {
                "neither a key of this service nor a signed JSON Web Token was sent as the bearer"
            }
            Self::Type => "the token has a typ that is not for this; JWT and at+jwt are accepted",
            Self::Algorithm => "the algorithm of the token is not accepted, or not with its key",
            Self::UnknownKey => {
                "the token refers to a key that its issuer does not have; get a new token"
            }
            Self::UnnamedKey => {
                "the token does not name its key (kid), and its issuer has several keys for its algorithm; have the issuer name the key"
            }
            Self::NoKeys => {
                "the keys of the issuer of tokens are not known at the moment, so no new token can be verified"
            }
            Self::Signature => "the signature of the token is not valid",
            Self::Claims => {
                "a claim of the token is missing, is there twice, or has a type or a value that it cannot have; exp, iss, aud and sub are required"
            }
            Self::Expired => "the token has expired, by the clock of this service; get a new token",
            Self::NotYetValid => {
                "the token is not valid yet (nbf or iat), by the clock of this service"
            }
            Self::LivesTooLong => {
                "the token is valid for longer than this service accepts (jwt.lifetime_max); get one with an earlier exp"
            }
            Self::Issuer => "the token is of another issuer than the one that this service accepts",
            Self::Audience => "the token is for another audience than this service",
            Self::Subject => "the token is valid, but no principal of this service has its subject",
        }
    }
}
