//! The plan as a TOML file (version 1).
//!
//! ```toml
//! version = 1
//! policy = "object"               # who decided
//! machine = "opteron-4"           # where the predictions hold
//! page_bytes = 4096               # unit of `runs`
//! threads = "scatter"             # where threads are to run, or "compact"; left out: nothing is said of that
//!
//! [program]
//! executable = "cg"
//! build_id = "8b1c…"
//! arguments = ["100000"]
//! rank = 0                        # only where a launcher numbers processes
//!
//! [[team]]                        # patterns without `@team` mean the first
//! name = "openmp"
//! threads = 4
//! module = "libgomp.so.1.0.0"     # start routine: module, its build-id, address in its file
//! build_id = "…"
//! offset = 0x1dda0
//!
//! [[object]]                      # the first that fits an object wins
//! name = "cvar"
//! symbol = "cvar"                 # a static object: also `module`, `build_id`, `offset`, `size`
//! size = 41943040
//! placement = "block-cyclic:5M"
//! start = "second-thread"         # from when it holds; left out: "allocation", the object's own
//! why = "each thread sweeps its own 5 MiB of every 20"
//! predicted = { accesses = 51234, cost_share = 0.61, local_before = 0.25, local_after = 0.98 }
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
//! name = "large heap objects"
//! heap = ">=1M"                   # or `mapping = ">=1G"`; bounds as `--place` takes them
//! placement = "interleave"
//!
//! [[object]]
//! name = "code of libm.so.6"
//! code = "libm.so.6"              # a module's code: copies for the nodes that run it
//! build_id = "93ac…"              # of this build of it, these of its pages alone: the first, and how many
//! pages = ["0+2", "17+1"]
//! placement = "replicate"
//!
//! [[object]]
//! name = "heap, outside logged objects"
//! brk_heap = true                 # the heap that `brk` extends, where no decision about an object places it
//! size = 1384448                  # from its start on
//! placement = "runs"
//! runs = ["0+80 thread:0", "80+90 thread:1"]
//!
//! [[object]]
//! name = "the rest"
//! rest = true                     # what no other decision places: small objects, and what has no name
//! placement = "interleave"        # over nodes without weights; or "node:1", "first-touch"
//!
//! [[phase]]                       # what changes when a function is executed for the first time
//! function = "columns._omp_fn.0"
//! module = "adi"                  # also `build_id`, `offset` and `size`
//! threads = [1, 0, 3, 2]          # whose place each thread of the first team takes; left out: none moves
//!
//! [[phase.object]]                # as above, but for `rest`, `brk_heap`, `code` and `start`
//! name = "grid"
//! symbol = "grid"
//! placement = "block-cyclic:4K"
//! ```
//!
//! `start = "second-thread"`: until a second thread of the process runs, the object is left to first touch,
//! near the thread that fills it alone; then each of its pages moves to its place when it is next used.
//! `start = "parallel"`: the same, and when one thread has run alone for a millisecond or longer, its pages
//! move near that one when they are next used, until another runs again.
//! With `placement = "first-touch"` each page goes near the thread that is the first to use it then.
//! `simulate` does that. `run` moves all pages that are there to where the plan says when the second thread is
//! created, and does the rest neither for `parallel` nor for `first-touch`: `docs/formats.md` says why.
//!
//! A phase begins when any thread executes its function for the first time: each page of the objects that it names
//! moves to its place when it is next used, with `placement = "first-touch"` near the thread that uses it. What it
//! does not name stays where it is. `run` moves the pages that are there, and the threads, when the function is about to
//! be executed by a team or as a thread's start routine, and leaves objects with `first-touch` where they are.
//!
//! `why` and `predicted` may be left out, and every unknown key is refused. Shares are written with
//! four decimals, accesses as whole numbers.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use toml::Spanned;

use crate::place_rule::{REST_PLACEMENT, parse_bounds, print_bounds};
use crate::{
    BuildId, CallSiteFrame, Decision, Effect, Error, Layout, PageRun, Phase, Placement, Plan,
    Program, Start, Subject, Team,
};

/// The version that [`Plan::to_toml`] writes and [`Plan::from_toml`] reads.
pub const VERSION: u32 = 1;

/// No plan is as large; a file beyond it is something else.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl Plan {
    /// The plan as a TOML file. Tables and keys always have the same order.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# A nearpage plan: where the pages of each object go. The first [[object]] that fits wins.\n\
             # placement: block, block-cyclic:20M, interleave, interleave:0,2-3, interleave:0=3,1=1,\n\
             #   thread:2, node:1, runs, replicate, first-touch; block@TEAM for another team than the first.\n\
             version = {VERSION}\npolicy = {}\nmachine = {}\npage_bytes = {}\n",
            quote(&self.policy),
            quote(&self.machine),
            self.page_bytes,
        );
        if let Some(layout) = self.threads {
            text += &format!("threads = {}\n", quote(layout.as_str()));
        }
        self.program.write_toml(&mut text);
        for team in &self.teams {
            text += &format!(
                "\n[[team]]\nname = {}\nthreads = {}\n",
                quote(&team.name),
                team.threads
            );
            key_unless_empty(&mut text, "module", &team.module);
            key_unless_empty(&mut text, "build_id", &team.build_id);
            if team.offset != 0 {
                text += &format!("offset = {}\n", address(team.offset));
            }
        }
        for decision in &self.decisions {
            decision.write_toml("object", &mut text);
        }
        for phase in &self.phases {
            phase.write_toml(&mut text);
        }
        text
    }

    /// Reads a plan; `origin` (its path) goes into messages.
    ///
    /// # Errors
    /// [`Error::Syntax`] names the line and what was expected there.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let fault = |at: usize, message: String| Error::Syntax {
            origin: origin.to_owned(),
            line: text.as_bytes()[..at.min(text.len())]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count()
                + 1,
            message,
        };
        let syntax = |error: toml::de::Error| {
            let message = error
                .message()
                .replace("unknown field", "unknown key")
                .replace("missing field", "missing key");
            fault(
                error.span().map_or(0, |span| span.start),
                message.trim_end().replace('\n', ", "),
            )
        };
        // Alone and first: what a newer version added would be refused as unknown otherwise.
        let version = toml::from_str::<VersionOnly>(text).map_err(syntax)?.version;
        if *version.get_ref() != i64::from(VERSION) {
            let message = format!(
                "this is a plan of version {}; expected version {VERSION}; make it again with `nearpage plan`",
                version.get_ref()
            );
            return Err(fault(version.span().start, message));
        }
        let file: PlanFile = toml::from_str(text).map_err(syntax)?;
        if !file.page_bytes.get_ref().is_power_of_two() || *file.page_bytes.get_ref() > 1 << 40 {
            let message = format!(
                "`page_bytes` is {}; expected a power of two",
                file.page_bytes.get_ref()
            );
            return Err(fault(file.page_bytes.span().start, message));
        }
        let threads = file.threads.map(|text| {
            Layout::from_name(text.get_ref()).ok_or_else(|| {
                let found = quote(text.get_ref());
                let message = format!("`threads` is {found}; it can be \"compact\" or \"scatter\"");
                fault(text.span().start, message)
            })
        });
        let threads = threads.transpose()?;
        let mut decisions = Vec::with_capacity(file.objects.len());
        for object in file.objects {
            let start = object.span().start;
            let decision = object
                .into_inner()
                .decision(start)
                .map_err(|(at, message)| fault(at, message))?;
            for (is_it, what) in [
                (is_of_rest as fn(&Decision) -> bool, "the rest"),
                (is_of_brk_heap, "`brk_heap`"),
            ] {
                if is_it(&decision) && decisions.iter().any(is_it) {
                    let message = format!("there is one decision about {what} already");
                    return Err(fault(start, message));
                }
            }
            decisions.push(decision);
        }
        let phases = file.phases.into_iter().map(|phase| {
            let start = phase.span().start;
            let phase = phase.into_inner().phase(start);
            phase.map_err(|(at, message)| fault(at, message))
        });
        let phases = phases.collect::<Result<Vec<Phase>, Error>>()?;
        Ok(Self {
            program: file.program,
            policy: file.policy,
            machine: file.machine,
            page_bytes: file.page_bytes.into_inner(),
            threads,
            teams: file.teams,
            decisions,
            phases,
        })
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// Unreadable, or not a plan: the message names file and line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_toml(&read_text(path)?, &path.display().to_string())
    }

    /// Writes a plan file, whole or not at all: an earlier file stays until the new one is complete.
    ///
    /// # Errors
    /// Unwritable.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_whole(path, self.to_toml().as_bytes())
    }
}

impl Program {
    pub(crate) fn write_toml(&self, text: &mut String) {
        text.push_str("\n[program]\n");
        *text += &format!("executable = {}\n", quote(&self.executable));
        key_unless_empty(text, "build_id", &self.build_id);
        let arguments: Vec<String> = self
            .arguments
            .iter()
            .map(|argument| quote(argument))
            .collect();
        *text += &format!("arguments = [{}]\n", arguments.join(", "));
        if let Some(rank) = self.rank {
            *text += &format!("rank = {rank}\n");
        }
    }
}

impl Phase {
    fn write_toml(&self, text: &mut String) {
        *text += &format!("\n[[phase]]\nfunction = {}\n", quote(&self.function));
        key_unless_empty(text, "module", &self.module);
        key_unless_empty(text, "build_id", &self.build_id);
        if self.offset != 0 {
            *text += &format!("offset = {}\n", address(self.offset));
        }
        if self.size_bytes != 0 {
            *text += &format!("size = {}\n", integer(self.size_bytes));
        }
        if !self.threads.is_empty() {
            let threads: Vec<String> = self.threads.iter().map(u32::to_string).collect();
            *text += &format!("threads = [{}]\n", threads.join(", "));
        }
        for decision in &self.decisions {
            decision.write_toml("phase.object", text);
        }
    }
}

impl Decision {
    /// As a table of this name.
    fn write_toml(&self, table: &str, text: &mut String) {
        *text += &format!("\n[[{table}]]\nname = {}\n", quote(&self.name));
        match &self.subject {
            Subject::Symbol {
                symbol,
                module,
                build_id,
                offset,
                size_bytes,
            } => {
                *text += &format!("symbol = {}\n", quote(symbol));
                key_unless_empty(text, "module", module);
                key_unless_empty(text, "build_id", build_id);
                if *offset != 0 {
                    *text += &format!("offset = {}\n", address(*offset));
                }
                if *size_bytes != 0 {
                    *text += &format!("size = {}\n", integer(*size_bytes));
                }
            }
            Subject::CallSite {
                frames,
                size_bytes,
                order,
                thread,
            } => {
                text.push_str("call_site = [\n");
                for frame in frames {
                    *text += &format!("  {{ {} }},\n", print_frame(frame));
                }
                text.push_str("]\n");
                if *size_bytes != 0 {
                    *text += &format!("size = {}\n", integer(*size_bytes));
                }
                if let Some((first, last)) = order {
                    *text += &format!("order = [{first}, {last}]\n");
                }
                if let Some(thread) = thread {
                    *text += &format!("thread = {thread}\n");
                }
            }
            Subject::Code {
                module,
                build_id,
                pages,
            } => {
                *text += &format!("code = {}\n", quote(module));
                key_unless_empty(text, "build_id", build_id);
                let pages = pages
                    .iter()
                    .map(|(first, count)| quote(&format!("{first}+{count}")));
                let pages: Vec<String> = pages.collect();
                if !pages.is_empty() {
                    *text += &format!("pages = [{}]\n", pages.join(", "));
                }
            }
            Subject::BrkHeap { size_bytes } => {
                *text += &format!("brk_heap = true\nsize = {}\n", integer(*size_bytes));
            }
            Subject::Rest => text.push_str("rest = true\n"),
            Subject::Heap {
                size_min_bytes,
                size_max_bytes,
            } => {
                *text += &format!(
                    "heap = {}\n",
                    quote(&print_bounds(*size_min_bytes, *size_max_bytes))
                );
            }
            Subject::Mapping {
                size_min_bytes,
                size_max_bytes,
            } => {
                *text += &format!(
                    "mapping = {}\n",
                    quote(&print_bounds(*size_min_bytes, *size_max_bytes))
                );
            }
        }
        *text += &format!("placement = {}\n", quote(&self.placement.to_string()));
        if let Placement::Runs(runs) = &self.placement {
            text.push_str("runs = [\n");
            for four in runs.chunks(4) {
                let four: Vec<String> = four.iter().map(|run| quote(&run.to_string())).collect();
                *text += &format!("  {},\n", four.join(", "));
            }
            text.push_str("]\n");
        }
        if self.start != Start::default() {
            *text += &format!("start = {}\n", quote(self.start.as_str()));
        }
        key_unless_empty(text, "why", &self.why);
        if self.effect != Effect::default() {
            let Effect {
                accesses,
                cost_share,
                local_before,
                local_after,
            } = self.effect;
            *text += &format!("predicted = {{ accesses = {}", figure(accesses.round()));
            *text += &format!(", cost_share = {}", share(cost_share));
            if let Some(local_before) = local_before {
                *text += &format!(", local_before = {}", share(local_before));
            }
            *text += &format!(", local_after = {} }}\n", share(local_after));
        }
    }
}

fn print_frame(frame: &CallSiteFrame) -> String {
    let mut keys = Vec::new();
    if !frame.function.is_empty() {
        keys.push(format!("function = {}", quote(&frame.function)));
    }
    if frame.line != 0 {
        keys.push(format!("line = {}", frame.line));
    }
    keys.push(format!("module = {}", quote(&frame.module)));
    keys.push(format!("offset = {}", address(frame.offset)));
    if !frame.build_id.is_empty() {
        keys.push(format!("build_id = {}", quote(&frame.build_id)));
    }
    keys.join(", ")
}

fn key_unless_empty(text: &mut String, key: &str, value: &str) {
    if !value.is_empty() {
        *text += &format!("{key} = {}\n", quote(value));
    }
}

/// A TOML integer has 63 bits; nothing in a program's address space needs more.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn address(offset: u64) -> String {
    format!("{:#x}", integer(offset))
}

fn share(share: f64) -> String {
    figure((share * 1e4).round() / 1e4)
}

fn figure(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_owned(),
        _ => format!("{value:?}"),
    }
}

/// A TOML basic string on one line.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[derive(Deserialize)]
struct VersionOnly {
    version: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    machine: String,
    #[serde(default = "ordinary_page")]
    page_bytes: Spanned<u64>,
    threads: Option<Spanned<String>>,
    program: Program,
    #[serde(default, rename = "team")]
    teams: Vec<Team>,
    #[serde(default, rename = "object")]
    objects: Vec<Spanned<ObjectTable>>,
    #[serde(default, rename = "phase")]
    phases: Vec<Spanned<PhaseTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseTable {
    function: String,
    #[serde(default)]
    module: String,
    #[serde(default)]
    build_id: BuildId,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    size: u64,
    threads: Option<Spanned<Vec<u32>>>,
    #[serde(default, rename = "object")]
    objects: Vec<Spanned<ObjectTable>>,
}

impl PhaseTable {
    fn phase(self, start: usize) -> Result<Phase, Fault> {
        let mut decisions = Vec::with_capacity(self.objects.len());
        for object in self.objects {
            let start = object.span().start;
            let object = object.into_inner();
            let is_all = object.rest || object.brk_heap;
            if object.start.is_some() || is_all || object.code.is_some() {
                let message =
                    "`start`, `rest`, `brk_heap` and `code` do not go with an object of a phase";
                return Err((start, message.to_owned()));
            }
            decisions.push(object.decision(start)?);
        }
        let threads = self.threads.map(|threads| {
            let at = threads.span().start;
            let threads = threads.into_inner();
            let mut sorted = threads.clone();
            sorted.sort_unstable();
            match sorted.into_iter().eq(0..threads.len() as u32) {
                true => Ok(threads),
                false => Err((
                    at,
                    "`threads` has to name each thread from 0 on once".to_owned(),
                )),
            }
        });
        let threads = threads.transpose()?.unwrap_or_default();
        if decisions.is_empty() && threads.is_empty() {
            let message =
                "a phase needs `threads` or a `[[phase.object]]`, or nothing begins with it";
            return Err((start, message.to_owned()));
        }
        Ok(Phase {
            threads,
            function: self.function,
            module: self.module,
            build_id: self.build_id,
            offset: self.offset,
            size_bytes: self.size,
            decisions,
        })
    }
}

fn ordinary_page() -> Spanned<u64> {
    Spanned::new(0..0, 4096)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectTable {
    #[serde(default)]
    name: String,
    symbol: Option<String>,
    #[serde(default)]
    module: String,
    #[serde(default)]
    build_id: BuildId,
    #[serde(default)]
    offset: u64,
    call_site: Option<Vec<CallSiteFrame>>,
    #[serde(default)]
    size: u64,
    order: Option<Spanned<[u32; 2]>>,
    thread: Option<u32>,
    code: Option<String>,
    #[serde(default)]
    pages: Vec<Spanned<String>>,
    #[serde(default)]
    brk_heap: bool,
    #[serde(default)]
    rest: bool,
    heap: Option<Spanned<String>>,
    mapping: Option<Spanned<String>>,
    placement: Spanned<String>,
    runs: Option<Vec<Spanned<String>>>,
    start: Option<Spanned<String>>,
    #[serde(default)]
    why: String,
    #[serde(default)]
    predicted: Effect,
}

fn is_of_rest(decision: &Decision) -> bool {
    decision.subject == Subject::Rest
}

fn is_of_brk_heap(decision: &Decision) -> bool {
    decision.subject.is_brk_heap()
}

/// Where, and what is wrong.
type Fault = (usize, String);

impl ObjectTable {
    fn decision(self, start: usize) -> Result<Decision, Fault> {
        let placement = self.placement()?;
        let start_of_placement = self.start_of_placement()?;
        let name = self.name.clone();
        let (why, effect) = (self.why.clone(), self.predicted);
        let at = self.placement.span().start;
        let subject = self.subject(start)?;
        if subject == Subject::Rest && !placement.fits_rest() {
            return Err((at, REST_PLACEMENT.to_owned()));
        }
        Ok(Decision {
            name,
            subject,
            placement,
            start: start_of_placement,
            why,
            effect,
        })
    }

    fn start_of_placement(&self) -> Result<Start, Fault> {
        let Some(text) = &self.start else {
            return Ok(Start::default());
        };
        Start::from_name(text.get_ref()).ok_or_else(|| {
            let found = quote(text.get_ref());
            let message = format!(
                "`start` is {found}; it can be \"allocation\", \"second-thread\" or \"parallel\""
            );
            (text.span().start, message)
        })
    }

    fn placement(&self) -> Result<Placement, Fault> {
        let at = self.placement.span().start;
        let placement = Placement::parse_among(self.placement.get_ref(), &[])
            .map_err(|message| (at, message))?;
        match (placement, &self.runs) {
            (Placement::Runs(_), None) => Err((
                at,
                "`placement = \"runs\"` needs `runs = [\"0+128 thread:0\"]`".to_owned(),
            )),
            (Placement::Runs(_), Some(runs)) => {
                let run = |text: &Spanned<String>| {
                    PageRun::parse(text.get_ref()).map_err(|message| (text.span().start, message))
                };
                let runs: Vec<PageRun> = runs.iter().map(run).collect::<Result<_, _>>()?;
                match runs
                    .windows(2)
                    .any(|pair| pair[1].first_page < pair[0].first_page + pair[0].pages)
                {
                    true => Err((
                        at,
                        "`runs` overlap or are not in ascending order".to_owned(),
                    )),
                    false if runs.is_empty() => Err((at, "`runs` is empty".to_owned())),
                    false => Ok(Placement::Runs(runs)),
                }
            }
            (placement, None) => Ok(placement),
            (_, Some(_)) => Err((
                at,
                "`runs` goes with `placement = \"runs\"` only".to_owned(),
            )),
        }
    }

    fn subject(self, start: usize) -> Result<Subject, Fault> {
        let no_symbol_keys = self.module.is_empty() && self.build_id.is_empty() && self.offset == 0;
        let no_call_site_keys = self.order.is_none() && self.thread.is_none();
        let bounds = |text: &Spanned<String>| {
            let bounds =
                parse_bounds(text.get_ref()).map_err(|message| (text.span().start, message))?;
            match no_symbol_keys && no_call_site_keys && self.size == 0 {
                true => Ok(bounds),
                false => Err((
                    start,
                    "`heap` and `mapping` go with no other key that recognises an object"
                        .to_owned(),
                )),
            }
        };
        let others = [
            self.symbol.is_some(),
            self.call_site.is_some(),
            self.code.is_some(),
            self.heap.is_some(),
            self.mapping.is_some(),
        ];
        let alone = no_symbol_keys && no_call_site_keys && !others.contains(&true);
        if self.rest {
            return match alone && self.size == 0 && !self.brk_heap {
                true => Ok(Subject::Rest),
                false => Err((
                    start,
                    "`rest` goes with no other key that recognises an object".to_owned(),
                )),
            };
        }
        if self.brk_heap {
            return match alone && self.size > 0 {
                true => Ok(Subject::BrkHeap {
                    size_bytes: self.size,
                }),
                false => Err((
                    start,
                    "`brk_heap` needs `size`, and goes with no other key that recognises an object"
                        .to_owned(),
                )),
            };
        }
        if let (Some(module), None, None, None, None) = (
            &self.code,
            &self.symbol,
            &self.call_site,
            &self.heap,
            &self.mapping,
        ) {
            let no_symbol_keys = self.module.is_empty() && self.offset == 0;
            let alone = no_symbol_keys && no_call_site_keys && self.size == 0;
            let pages = self.pages.iter().map(|text| {
                let of = code_pages(text.get_ref());
                of.map_err(|message| (text.span().start, message))
            });
            let pages: Vec<(u64, u64)> = pages.collect::<Result<_, Fault>>()?;
            if pages.windows(2).any(|two| two[1].0 < two[0].0 + two[0].1) {
                let at = self.pages[0].span().start;
                return Err((
                    at,
                    "`pages` overlap or are not in ascending order".to_owned(),
                ));
            }
            return match alone && self.placement.get_ref() == "replicate" {
                true => Ok(Subject::Code {
                    module: module.clone(),
                    build_id: self.build_id,
                    pages,
                }),
                false => Err((
                    start,
                    "`code` goes with `placement = \"replicate\"` and with no other key that recognises an object"
                        .to_owned(),
                )),
            };
        }
        if self.code.is_some() {
            return Err((start, ONE_KEY.to_owned()));
        }
        if let Some(pages) = self.pages.first() {
            let at = pages.span().start;
            return Err((at, "`pages` goes with `code` only".to_owned()));
        }
        match (self.symbol, self.call_site, &self.heap, &self.mapping) {
            (Some(symbol), None, None, None) if no_call_site_keys => Ok(Subject::Symbol {
                symbol,
                module: self.module,
                build_id: self.build_id,
                offset: self.offset,
                size_bytes: self.size,
            }),
            (None, Some(frames), None, None) if no_symbol_keys => {
                if frames.is_empty() {
                    return Err((start, "`call_site` has no frame".to_owned()));
                }
                let order = match self.order {
                    Some(order) if order.get_ref()[0] > order.get_ref()[1] => {
                        return Err((
                            order.span().start,
                            "`order` runs backwards; expected `[first, last]`".to_owned(),
                        ));
                    }
                    order => order.map(|order| (order.get_ref()[0], order.get_ref()[1])),
                };
                Ok(Subject::CallSite {
                    frames,
                    size_bytes: self.size,
                    order,
                    thread: self.thread,
                })
            }
            (None, None, Some(heap), None) => {
                bounds(heap).map(|(size_min_bytes, size_max_bytes)| Subject::Heap {
                    size_min_bytes,
                    size_max_bytes,
                })
            }
            (None, None, None, Some(mapping)) => {
                bounds(mapping).map(|(size_min_bytes, size_max_bytes)| Subject::Mapping {
                    size_min_bytes,
                    size_max_bytes,
                })
            }
            (Some(_), None, None, None) => Err((
                start,
                "`order` and `thread` go with `call_site` only".to_owned(),
            )),
            (None, Some(_), None, None) => Err((
                start,
                "`module`, `build_id` and `offset` go with `symbol`, or inside a frame".to_owned(),
            )),
            _ => Err((start, ONE_KEY.to_owned())),
        }
    }
}

/// Pages of code: the first, and how many.
fn code_pages(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('+').and_then(|(first, count)| {
        let numbers: (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
        let end = numbers.0.checked_add(numbers.1)?;
        (numbers.1 > 0 && end <= 1 << 52).then_some(numbers)
    });
    parts.ok_or_else(|| {
        format!("`{text}`: expected a page and how many from there on, such as `17+2`")
    })
}

const ONE_KEY: &str =
    "expected exactly one of `symbol`, `call_site`, `code`, `heap`, `mapping` and `rest`";

/// A text file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let read = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(read)?.len() > FILE_BYTES_MAX {
        return Err(read(std::io::Error::other("it is too large to be a plan")));
    }
    fs::read_to_string(path).map_err(read)
}

/// Writes beside `path` and renames, so that a reader sees the old file or the new one. What is there
/// and no file, such as `/dev/null` or a pipe, is written to and stays what it is.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    let fault = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    let name = path
        .file_name()
        .ok_or_else(|| fault(std::io::Error::other("it names no file")))?;
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, content).map_err(fault);
    }
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", unique()));
    let beside = path.with_file_name(beside);
    let written = File::create_new(&beside)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        fault(source)
    })
}

/// Differs between processes and between calls; later calls sort behind earlier ones.
pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!("{:020}-{:06}-{}", now.as_nanos(), call, std::process::id())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::tests::{name, placement};

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..1 << 20, 0u64..=i64::MAX as u64]
    }

    fn subject() -> impl Strategy<Value = Subject> {
        let frame = (name(), "[0-9a-f]{0,40}", number(), name(), any::<u32>()).prop_map(
            |(module, build_id, offset, function, line)| CallSiteFrame {
                module,
                build_id,
                offset,
                function,
                line,
            },
        );
        let bounds = || (any::<u64>(), any::<u64>()).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![
            (name(), name(), "[0-9a-f]{0,40}", number(), number()).prop_map(
                |(symbol, module, build_id, offset, size_bytes)| Subject::Symbol {
                    symbol,
                    module,
                    build_id,
                    offset,
                    size_bytes
                }
            ),
            (
                prop::collection::vec(frame, 1..4),
                number(),
                prop::option::of((0u32..100, 100u32..)),
                prop::option::of(any::<u32>())
            )
                .prop_map(|(frames, size_bytes, order, thread)| Subject::CallSite {
                    frames,
                    size_bytes,
                    order,
                    thread
                }),
            (
                name(),
                "[0-9a-f]{0,40}",
                prop::collection::vec((1u64..99, 1u64..9), 0..4)
            )
                .prop_map(|(module, build_id, runs)| {
                    let mut end = 0;
                    let pages = runs.into_iter().map(|(gap, count)| {
                        let first = end + gap;
                        end = first + count;
                        (first, count)
                    });
                    Subject::Code {
                        module,
                        build_id,
                        pages: pages.collect(),
                    }
                }),
            (1..=i64::MAX as u64).prop_map(|size_bytes| Subject::BrkHeap { size_bytes }),
            Just(Subject::Rest),
            bounds().prop_map(|(size_min_bytes, size_max_bytes)| Subject::Heap {
                size_min_bytes,
                size_max_bytes
            }),
            bounds().prop_map(|(size_min_bytes, size_max_bytes)| Subject::Mapping {
                size_min_bytes,
                size_max_bytes
            }),
        ]
    }

    /// Runs in order, as a plan has them.
    fn ordered(placement: Placement) -> Placement {
        match placement {
            Placement::Runs(runs) => {
                let mut next = 0;
                let run = |run: PageRun| {
                    let first_page = next + run.first_page % 3;
                    next = first_page + run.pages;
                    PageRun { first_page, ..run }
                };
                Placement::Runs(runs.into_iter().map(run).collect())
            }
            other => other,
        }
    }

    fn plan() -> impl Strategy<Value = Plan> {
        let share = || (0u32..=10_000).prop_map(|share| f64::from(share) / 1e4);
        let effect = (0u32.., share(), prop::option::of(share()), share()).prop_map(
            |(accesses, cost_share, local_before, local_after)| Effect {
                accesses: f64::from(accesses),
                cost_share,
                local_before,
                local_after,
            },
        );
        let decision = (
            name(),
            subject(),
            placement(),
            prop::sample::select(vec![
                Start::Allocation,
                Start::SecondThread,
                Start::Parallel,
            ]),
            name(),
            effect,
        )
            .prop_map(|(name, subject, placement, start, why, effect)| Decision {
                name,
                placement: match subject {
                    Subject::Code { .. } => Placement::Replicate,
                    Subject::Rest if !placement.fits_rest() => Placement::FirstTouch,
                    _ => ordered(placement),
                },
                subject,
                start,
                why,
                effect,
            });
        let team = (name(), any::<u32>(), name(), "[0-9a-f]{0,40}", number()).prop_map(
            |(name, threads, module, build_id, offset)| Team {
                name,
                threads,
                module,
                build_id,
                offset,
            },
        );
        let program = (
            name(),
            "[0-9a-f]{0,40}",
            prop::collection::vec(name(), 0..4),
            prop::option::of(any::<u32>()),
        )
            .prop_map(|(executable, build_id, arguments, rank)| Program {
                executable,
                build_id,
                arguments,
                rank,
            });
        (
            program,
            name(),
            name(),
            (0u32..40).prop_map(|shift| 1u64 << shift),
            prop::option::of(prop::sample::select(Layout::ALL.to_vec())),
            prop::collection::vec(team, 0..3),
            prop::collection::vec(decision, 0..5),
        )
            .prop_map(
                |(program, policy, machine, page_bytes, threads, teams, mut decisions)| {
                    for is_it in [is_of_rest, is_of_brk_heap] {
                        let mut has_one = false;
                        decisions.retain(|decision: &Decision| {
                            !(is_it(decision) && std::mem::replace(&mut has_one, true))
                        });
                    }
                    // Any of them might as well change with a phase.
                    let begins = |decision: &Decision| {
                        let kind = &decision.subject;
                        let is_object = !matches!(
                            kind,
                            Subject::Code { .. } | Subject::BrkHeap { .. } | Subject::Rest
                        );
                        let phase = || Phase {
                            function: decision.name.clone(),
                            module: program.executable.clone(),
                            build_id: program.build_id.clone(),
                            offset: page_bytes,
                            size_bytes: page_bytes / 2,
                            threads: (0..page_bytes.ilog2() % 4).rev().collect(),
                            decisions: vec![Decision {
                                start: Start::Allocation,
                                ..decision.clone()
                            }],
                        };
                        is_object.then(phase)
                    };
                    let phases = decisions.iter().skip(2).filter_map(begins).collect();
                    Plan {
                        program,
                        policy,
                        machine,
                        page_bytes,
                        threads,
                        teams,
                        decisions,
                        phases,
                    }
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn survives_writing(plan in plan()) {
            let text = plan.to_toml();
            let again = Plan::from_toml(&text, "plan.toml").map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(&again, &plan);
            prop_assert_eq!(again.to_toml(), text);
        }

        #[test]
        fn damage_is_an_error_and_no_panic(plan in plan(), cut: prop::sample::Index, junk in "\\PC{0,3}") {
            let text = plan.to_toml();
            let mut at = cut.index(text.len() + 1);
            while !text.is_char_boundary(at) { at -= 1; }
            let _ = Plan::from_toml(&text[..at], "cut");
            let _ = Plan::from_toml(&format!("{}{junk}{}", &text[..at], &text[at..]), "junk");
        }
    }

    const SMALL: &str = r#"version = 1
[program]
executable = "cg"

[[object]]
name = "cvar"
symbol = "cvar"
placement = "block-cyclic:20M"
"#;

    #[test]
    fn a_plan_written_by_hand_needs_little() {
        let plan = Plan::from_toml(SMALL, "p").expect("plan");
        assert_eq!(plan.page_bytes, 4096);
        assert_eq!(plan.threads, None);
        assert_eq!(plan.decisions.len(), 1);
    }

    #[test]
    fn where_threads_run_is_written_only_where_a_plan_says_it() {
        let mut plan = Plan::from_toml(SMALL, "p").expect("plan");
        let silent = plan.to_toml();
        assert!(!silent.contains("threads"), "{silent}");
        for (layout, line) in [
            (Layout::Compact, "threads = \"compact\"\n"),
            (Layout::Scatter, "threads = \"scatter\"\n"),
        ] {
            plan.threads = Some(layout);
            let said = plan.to_toml();
            assert_eq!(said.replacen(line, "", 1), silent);
            assert!(
                said.contains(&format!("page_bytes = 4096\n{line}\n[program]")),
                "{said}"
            );
            assert_eq!(Plan::from_toml(&said, "p").expect("again"), plan);
        }
    }

    #[test]
    fn a_fault_names_file_line_and_key() {
        let message = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            Plan::from_toml(&SMALL.replace(from, to), "p.toml")
                .expect_err(to)
                .to_string()
        };
        for (from, to, parts) in [
            (
                "placement =",
                "placemnt =",
                &["p.toml:8:", "unknown key `placemnt`", "expected one of"][..],
            ),
            (
                "executable =",
                "exe = 1\nexecutable =",
                &["p.toml:3:", "unknown key `exe`"],
            ),
            (
                "version = 1",
                "version = 1\nnodes = 4",
                &["p.toml:2:", "unknown key `nodes`"],
            ),
            (
                "version = 1",
                "version = 2\nnodes = 4",
                &["p.toml:1:", "version 2", "expected version 1"],
            ),
            ("version = 1\n", "", &["p.toml:1:", "missing key `version`"]),
            (
                "placement =",
                "start = \"later\"\nplacement =",
                &["p.toml:8:", "`start` is \"later\"", "\"second-thread\""],
            ),
            (
                "block-cyclic:20M",
                "block-cyclic",
                &["p.toml:8:", "block-cyclic:20M"],
            ),
            ("block-cyclic:20M", "runs", &["p.toml:8:", "needs `runs"]),
            (
                "\"block-cyclic:20M\"",
                "\"runs\"\nruns = [\"0+1 thread:0\",\n\"x\"]",
                &["p.toml:10:", "0+128 thread:0"],
            ),
            (
                "\"block-cyclic:20M\"",
                "\"runs\"\nruns = [\"4+4 thread:0\", \"7+1 node:0\"]",
                &["p.toml:8:", "overlap"],
            ),
            ("symbol = \"cvar\"\n", "", &["p.toml:5:", "exactly one of"]),
            (
                "symbol = \"cvar\"",
                "code = \"cg\"",
                &["p.toml:5:", "`code` goes with `placement = \"replicate\"`"],
            ),
            (
                "symbol = \"cvar\"",
                "pages = [\"0+1\"]\nsymbol = \"cvar\"",
                &["p.toml:7:", "`pages` goes with `code` only"],
            ),
            (
                "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
                "code = \"cg\"\npages = [\"3+0\"]\nplacement = \"replicate\"",
                &["p.toml:8:", "expected a page and how many"],
            ),
            (
                "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
                "code = \"cg\"\npages = [\"3+2\", \"4+1\"]\nplacement = \"replicate\"",
                &["p.toml:8:", "`pages` overlap"],
            ),
            (
                "symbol = \"cvar\"",
                "symbol = \"cvar\"\ncode = \"cg\"",
                &["p.toml:5:", "exactly one of"],
            ),
            (
                "symbol = \"cvar\"",
                "symbol = \"cvar\"\nheap = \">=1M\"",
                &["p.toml:5:", "exactly one of"],
            ),
            (
                "symbol = \"cvar\"",
                "symbol = \"cvar\"\nthread = 1",
                &["p.toml:5:", "with `call_site` only"],
            ),
            (
                "symbol = \"cvar\"",
                "heap = \">1\"\nsize = 4",
                &["p.toml:5:", "no other key"],
            ),
            ("symbol = \"cvar\"", "heap = \"1M\"", &["p.toml:7:", ">=1M"]),
            (
                "symbol = \"cvar\"",
                "rest = true",
                &["p.toml:8:", "the rest can be `interleave`"],
            ),
            (
                "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
                "rest = true\nplacement = \"interleave:0=3,1=1\"",
                &["p.toml:8:", "without weights"],
            ),
            (
                "symbol = \"cvar\"",
                "rest = true\nheap = \">=1M\"",
                &["p.toml:5:", "`rest` goes with no other key"],
            ),
            (
                "symbol = \"cvar\"",
                "rest = true\nsize = 4096",
                &["p.toml:5:", "`rest` goes with no other key"],
            ),
            (
                "symbol = \"cvar\"",
                "rest = false",
                &["p.toml:5:", "exactly one of"],
            ),
            (
                "symbol = \"cvar\"",
                "brk_heap = true",
                &["p.toml:5:", "`brk_heap` needs `size`"],
            ),
            (
                "symbol = \"cvar\"",
                "brk_heap = true\nsize = 4096\nthread = 1",
                &["p.toml:5:", "no other key"],
            ),
            (
                "[[object]]",
                "[[object]]\nname = \"a\"\nbrk_heap = true\nsize = 8192\nplacement = \"interleave\"\n\
                 [[object]]\nname = \"b\"\nbrk_heap = true\nsize = 4096\nplacement = \"node:1\"\n[[object]]",
                &["p.toml:10:", "one decision about `brk_heap` already"],
            ),
            (
                "[[object]]",
                "[[object]]\nname = \"a\"\nrest = true\nplacement = \"interleave\"\n\
                 [[object]]\nname = \"b\"\nrest = true\nplacement = \"node:1\"\n[[object]]",
                &["p.toml:9:", "one decision about the rest already"],
            ),
            (
                "[[object]]",
                "[[phase]]\nfunction = \"f\"\n[[object]]",
                &[
                    "p.toml:5:",
                    "a phase needs `threads` or a `[[phase.object]]`",
                ],
            ),
            (
                "[[object]]",
                "[[phase]]\nfunction = \"f\"\nthreads = [1, 1]\n[[object]]",
                &["p.toml:7:", "each thread from 0 on once"],
            ),
            (
                "[[object]]",
                "[[phase]]\nmodule = \"cg\"\n[[object]]",
                &["p.toml:5:", "missing key `function`"],
            ),
            (
                "[[object]]",
                "[[phase]]\nfunction = \"f\"\n[[phase.object]]\nstart = \"parallel\"",
                &[
                    "p.toml:7:",
                    "`start`, `rest`, `brk_heap` and `code` do not go",
                ],
            ),
            (
                "symbol = \"cvar\"",
                "call_site = []",
                &["p.toml:5:", "no frame"],
            ),
            (
                "symbol = \"cvar\"",
                "symbol = 4",
                &["p.toml:7:", "expected a string"],
            ),
            ("symbol = \"cvar\"", "symbol = \"cv", &["p.toml:7:"]),
            (
                "version = 1",
                "version = 1\nthreads = \"none\"",
                &[
                    "p.toml:2:",
                    "`threads` is \"none\"",
                    "\"compact\" or \"scatter\"",
                ],
            ),
            (
                "version = 1",
                "version = 1\nthreads = 4",
                &["p.toml:2:", "expected a string"],
            ),
            (
                "version = 1",
                "version = 1\npage_bytes = 3",
                &["p.toml:2:", "power of two"],
            ),
        ] {
            let message = message(from, to);
            assert!(
                parts.iter().all(|part| message.contains(part)),
                "{to}: {message}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("plan.toml");
        let plan = Plan::from_toml(SMALL, "p").expect("plan");
        plan.write(&path).expect("written");
        plan.write(&path).expect("replaced");
        assert_eq!(Plan::read(&path).expect("read"), plan);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
        let missing = folder.path().join("none/plan.toml");
        assert!(
            plan.write(&missing)
                .expect_err("no folder")
                .to_string()
                .contains("none/plan.toml")
        );
        assert!(
            Plan::read(&missing)
                .expect_err("no file")
                .to_string()
                .contains("none/plan.toml")
        );
        // A folder in the way: the rename fails, and nothing stays behind.
        fs::create_dir(folder.path().join("d.toml")).expect("folder");
        assert!(plan.write(&folder.path().join("d.toml")).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 2);
    }
}
