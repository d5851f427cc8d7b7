//! The plan as a TOML file (version 1).
//!
//! ```toml
//! version = 1
//! policy = "object"               # policy that decided
//! machine = "opteron-4"           # where the predictions hold
//! page_bytes = 4096               # unit of `runs`
//! threads = "scatter"             # layout of threads, or "compact"; left out: none
//!
//! [program]
//! executable = "cg"
//! build_id = "8b1c…"
//! arguments = ["100000"]
//! rank = 0                        # only if a launcher numbers processes
//!
//! [predicted]                     # prediction for the whole plan; left out: none
//! local_before = 0.31             # shares of local accesses
//! local_after = 0.93
//! first_touch_ns = 267000000      # times of a run that `plan --runtime-scale` scales
//! planned_ns = 201000000
//!
//! [online_migration]              # pages move while the program runs, by `live --policy auto`; left out: they stay
//! budget_permille = 100           # parameters, as `live --set` takes them
//!
//! [[team]]                        # patterns without `@team` mean the first
//! name = "openmp"
//! threads = 4                     # `main` with `beside = 3` works beside 3 threads, on the CPU after theirs
//! module = "libgomp.so.1.0.0"     # start routine: module, its build-id, address in its file
//! build_id = "…"
//! offset = 0x1dda0
//!
//! [[object]]                      # the first that fits an object wins
//! name = "cvar"
//! symbol = "cvar"                 # a static object: also `module`, `build_id`, `offset`, `size`
//! size = 41943040
//! placement = "block-cyclic:5M"
//! start = "second-thread"         # when the placement begins; left out: "allocation"
//! why = "each thread sweeps its own 5 MiB of every 20"
//! predicted = { accesses = 51234, cost_share = 0.61, local_before = 0.25, local_after = 0.98, samples = 821, confidence = 0.95 }
//!
//! [[object]]
//! name = "main:120"
//! call_site = [                   # innermost first; also `order = [0, 3]`, `thread = 1`
//!   { function = "main", line = 120, module = "cg", offset = 0x12a4, build_id = "8b1c…" },
//! ]
//! size = 1048576
//! placement = "runs"
//! runs = ["0+128 thread:0", "128+128 thread:1"]
//!
//! [[object]]
//! name = "grid"
//! symbol = "grid"
//! size = 67108864
//! placement = "block:0-48M/64M"   # shares of the used part of an object of 64 MiB; of several arrays in one object:
//!                                 # "block:0-24M,24M-64M/64M"; tiles, with rows of 384 KiB in two shares of
//!                                 # the rows and four columns: "tiles:2x4/384K"; unequal shares:
//!                                 # "block:0-64M/64M/2:3:1". All are for teams of any size
//!
//! [[object]]
//! name = "large heap objects"
//! heap = ">=1M"                   # or `mapping = ">=1G"`; bounds as `--place` takes them
//! placement = "interleave"
//!
//! [[object]]
//! name = "code of libm.so.6"
//! code = "libm.so.6"              # a module's code: copies for the nodes that run it
//! build_id = "93ac…"              # the build that `pages` are of: first page and number of pages
//! pages = ["0+2", "17+1"]
//! placement = "replicate"
//!
//! [[object]]
//! name = "heap, outside logged objects"
//! brk_heap = true                 # the heap that `brk` extends, without pages that other objects place
//! size = 1384448                  # bytes from its start
//! placement = "runs"
//! runs = ["0+80 thread:0", "80+90 thread:1"]
//!
//! [[object]]
//! name = "unmatched memory"
//! unmatched = true                # memory that no other decision places: small objects, data without a name
//! placement = "interleave"        # over nodes without weights; or "node:1", "first-touch"
//!
//! [[phase]]                       # changes when a function is executed for the first time
//! function = "columns._omp_fn.0"
//! module = "adi"                  # also `build_id`, `offset` and `size`
//! threads = [1, 0, 3, 2]          # the place that each thread of the first team takes; left out: none moves
//!
//! [[phase.object]]                # as above, without `unmatched`, `brk_heap`, `code` and `start`
//! name = "grid"
//! symbol = "grid"
//! placement = "block-cyclic:4K"
//! ```
//!
//! `start = "second-thread"`: until a second thread of the process runs, the object is under first touch, near the
//! thread that fills it alone. Afterwards, each page moves to its place when it is next used.
//! `start = "parallel"`: the same; and when one thread has run alone for a millisecond or longer, pages move near that
//! thread when they are next used, until another thread runs again.
//! With `placement = "first-touch"` each page goes near the first thread that uses it after the start.
//! `simulate` does all of this. `run` moves existing pages to their places once, when the second thread is created. It
//! does no more for `parallel`, and nothing for `first-touch`: `docs/reference/plan-file.md` says why.
//!
//! A phase begins when any thread executes its function for the first time. Each page of the objects that the phase
//! names moves to its place when it is next used; with `placement = "first-touch"`, near the thread that uses it. Other
//! objects stay where they are. `run` moves existing pages, and the threads, when a team or a thread's start routine is
//! about to execute the function; objects with `first-touch` stay where they are.
//!
//! The plan of a job has a part for each group of ranks that behave alike. A rank follows the part that lists it, else
//! the part that lists its local rank, else the first part, which is for the largest group:
//!
//! ```toml
//! version = 1
//!
//! [[group]]
//! ranks = "0-2,4-61"              # ranks that were recorded
//! local_ranks = "0-2"             # local ranks of ranks that were not recorded; left out: none
//!
//! [[group.plan]]                  # for each program of these ranks, with keys and tables as above
//! policy = "object"
//!
//! [group.plan.program]
//! executable = "app"
//!
//! [[group.plan.object]]
//! name = "grid"
//! symbol = "grid"
//! placement = "block"
//! ```
//!
//! `why` and `predicted` may be left out. So may, in `predicted`, `samples` (number of samples behind the decision) and
//! `confidence` (share of resamples that give the same decision). Every unknown key is refused. Shares are written with
//! four decimals, accesses as whole numbers.

mod object;
mod parse;
mod print;
#[cfg(test)]
mod tests;

/// The version that [`Plan::to_toml`](crate::Plan::to_toml) writes and [`Plan::from_toml`](crate::Plan::from_toml)
/// reads.
pub const VERSION: u32 = 1;
