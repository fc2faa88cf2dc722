//! The tokens that have been verified, in bounded memory: only the hash of a token is kept.

use std::collections::HashMap;
use std::mem;

use super::VerifiedToken;
use crate::config::KeyHash;

/// Verified tokens. Those that are used stay: when the recent ones have reached their number, those that were not used
/// since the time before are forgotten.
pub(super) struct VerifiedTokens {
    recent: HashMap<KeyHash, VerifiedToken>,
    earlier: HashMap<KeyHash, VerifiedToken>,
    recent_max: usize,
}

impl VerifiedTokens {
    pub(super) fn new(tokens_max: usize) -> Self {
        Self {
            recent: HashMap::new(),
            earlier: HashMap::new(),
            recent_max: tokens_max.div_ceil(2),
        }
    }

    /// The token, if it is known and still valid.
    pub(super) fn get(&mut self, hash: &KeyHash) -> Option<VerifiedToken> {
        if let Some(token) = self.recent.get(hash) {
            let token = token.clone();
            if token.life.is_over() {
                self.recent.remove(hash);
                return None;
            }
            return Some(token);
        }
        let token = self.earlier.remove(hash)?;
        if token.life.is_over() {
            return None;
        }
        self.insert(*hash, token.clone());
        Some(token)
    }

    pub(super) fn insert(&mut self, hash: KeyHash, token: VerifiedToken) {
        if self.recent.len() >= self.recent_max {
            self.earlier = mem::take(&mut self.recent);
        }
        self.recent.insert(hash, token);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::TokenLife;
    use super::super::issuer_keys::KeyEnd;
    use super::*;

    fn token(until: SystemTime) -> VerifiedToken {
        VerifiedToken {
            subject: "a".into(),
            life: TokenLife {
                until,
                key_end: KeyEnd::default(),
            },
        }
    }

    #[test]
    fn tokens_that_are_used_stay_and_their_number_is_bounded() {
        let mut tokens = VerifiedTokens::new(10);
        let hash = |number: u32| KeyHash::of(&number.to_be_bytes());
        let later = SystemTime::now() + Duration::from_secs(3_600);
        for number in 0..100 {
            tokens.insert(hash(number), token(later));
            assert!(tokens.get(&hash(0)).is_some(), "{number}");
            assert!(tokens.recent.len() + tokens.earlier.len() <= 10);
        }
        assert!(tokens.get(&hash(1)).is_none(), "nobody has used it since");
    }

    #[test]
    fn a_token_whose_time_or_whose_key_is_gone_is_no_longer_known() {
        let mut tokens = VerifiedTokens::new(10);
        let [one, other] = [b"1", b"2"].map(|text| KeyHash::of(text));
        tokens.insert(one, token(SystemTime::now()));
        assert!(tokens.get(&one).is_none());
        let valid = token(SystemTime::now() + Duration::from_secs(3_600));
        tokens.insert(other, valid.clone());
        assert!(tokens.get(&other).is_some());
        valid.life.key_end.end(false);
        assert!(tokens.get(&other).is_none());
    }
}
