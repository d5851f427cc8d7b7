//! Recordings on disk, as every command has them: read, decided for, predicted of, and weighed against each other.

mod analysis;
mod choice;
mod decided;
mod inputs;
mod making;

use nearpage_planner::Analysis;
