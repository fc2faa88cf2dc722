//! What hostile, broken or greedy peers do to the binary, and what it must go on doing meanwhile. Every test is bounded in
//! count and in time.

mod browsers;
mod keys;
mod unread_log;
