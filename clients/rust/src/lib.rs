//! Client of Leasehold, distributed locks over HTTP.
//!
//! ```no_run
//! # async fn run() -> Result<(), leasehold_client::Error> {
//! use std::time::Duration;
//!
//! let client = leasehold_client::Client::new("http://127.0.0.1:7625")?;
//! let lease = client.lock("backup").ttl(Duration::from_secs(30)).await?;
//! back_up(lease.fencing_token()).await;
//! lease.release().await?;
//! # Ok(())
//! # }
//! # async fn back_up(_: u64) {}
//! ```
//!
//! A lease is renewed in the background. [`Lease::while_held`] runs a future only for as long as the lease lasts.
//! Everything needs a tokio runtime with time and IO enabled.

mod acquire;
mod claim;
mod error;
mod key;
mod lease;
mod moment;
mod service;

pub use acquire::Acquire;
pub use error::{Error, Problem};
pub use lease::Lease;
pub use service::{Client, ClientBuilder};
