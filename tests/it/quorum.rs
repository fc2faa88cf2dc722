//! A quorum of embedded nodes whose operations are scripted, on a stopped clock: what a majority decides, whatever the
//! other nodes do, and that all of them end where the majority is. The contract itself runs in `contract`.

mod assignment;
mod attempts;
mod brought_back;
mod contenders;
mod disagreement;
mod drift;
mod early_ends;
mod failing;
mod follow_ups;
mod full;
mod health;
mod held_before;
mod held_meanwhile;
mod in_the_way;
mod late_changes;
mod minorities;
mod missed_changes;
mod model;
mod nodes;
mod permits;
mod places;
mod refusals;
mod repeated;
mod reports;
mod restored;
mod several_locks;
mod tokens;
mod unclear_changes;
mod views;
