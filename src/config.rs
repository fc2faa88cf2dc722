//! stub
use std::time::Duration;
/// x
#[derive(Clone, Debug)]
pub struct Secret(pub String);
impl Secret {
    /// x
    pub fn expose(&self) -> &str {
        &self.0
    }
}
/// x
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// x
    Memory,
    /// x
    Redis(Secret),
}
/// x
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// x
    pub locks_max: usize,
}
/// x
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// x
    pub connections: u32,
    /// x
    pub connect_timeout: Duration,
    /// x
    pub username: String,
    /// x
    pub password: Option<Secret>,
    /// x
    pub accept_eviction_policy: String,
    /// x
    pub grace_on_empty_start: bool,
    /// x
    pub survey_interval: Duration,
}
/// x
#[derive(Clone, Debug)]
pub struct Config {
    /// x
    pub store: StoreUrl,
    /// x
    pub memory: MemoryConfig,
    /// x
    pub redis: RedisConfig,
    /// x
    pub lease: LeaseConfig,
}
/// x
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// x
    pub ttl_max: Duration,
}
