//! Tools of nearpage's end-to-end tests.
//!
//! - [`Case`]: a test's own folder, in which `nearpage` and the workloads run.
//! - [`Guest`]: a real Linux with several memory nodes, in software emulation, over the files of this machine. It shows
//!   where pages are, never how fast anything is.
//! - [`Inspection`]: objects of a workload and the nodes of their pages, per mapping and page by page.
//! - [`in_guest`]: results of a script in a guest, and of `nearpage live` there.
//! - [`Browser`]: a real Chromium, for the page.
//! - [`documents`]: runs the command lines of documentation pages.
//! - [`chaos`]: runs real programs under nearpage while things go wrong around them.
//! - [`lab`]: runs commands on a modelled machine.
//! - [`generated`]: judges plans for programs whose accesses are known.
//! - [`mutated`]: runs commands on recordings with false content.
//!
//! The tests see only what a user sees, so this crate avoids nearpage's other crates, with three exceptions: tests of
//! the page make up a recording with a known pattern, [`mutated`] changes tables, and [`generated`] asks where a plan
//! puts each page.
//!
//! ```no_run
//! use nearpage_tests::{Case, Guest, Inspection, workload};
//! use std::time::Duration;
//!
//! let guest = Guest::four_nodes();
//! let case = Case::new("first_touch");
//! let cg = format!("env OMP_NUM_THREADS=4 {} 100000 16 10", workload("cg").display());
//! let script = Inspection::command("unplaced", &cg);
//! let output = guest.run_in(&case, &script, Duration::from_secs(60)).unwrap();
//! assert_eq!(output.status, 0, "{output}");
//!
//! let unplaced = Inspection::read(&case.path("unplaced")).unwrap();
//! assert!(unplaced.in_blocks("values", &guest) < 0.3);
//! ```

mod browser;
mod case;
pub mod chaos;
pub mod documents;
pub mod generated;
mod guest;
pub mod in_guest;
mod inspection;
pub mod lab;
mod mpi;
pub mod mutated;
pub mod numa_maps;
pub mod page_nodes;
pub mod paused;
mod python;
mod schema;
mod slurm;
mod socket;

pub use browser::Browser;
pub use case::{Case, Finished, nearpage_path, repository, target, workload};
pub use guest::{Guest, GuestError, GuestNode, GuestOutput};
pub use inspection::Inspection;
pub use mpi::{Mpi, compile_mpi_program};
pub use python::python_package;
pub use schema::{SCHEMAS, schema_errors};
pub use slurm::Slurm;
