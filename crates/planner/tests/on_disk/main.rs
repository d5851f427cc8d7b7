//! Recordings on disk, as commands use them: read, decided for, predicted for, and compared.

mod analysis;
mod choice;
mod decided;
mod inputs;
mod making;

use nearpage_planner::Analysis;
