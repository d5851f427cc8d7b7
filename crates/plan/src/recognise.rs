//! From what a plan says about an object to what the preload library compares: modules, addresses
//! and sizes of the programs as they are now.

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::compact_plan::{NONE, RULE_WEAK, Rule, subject};

use crate::compact::{Tables, open_rule};
use crate::module::{ModuleImage, Symbol};
use crate::suggest::did_you_mean;
use crate::{CallSiteFrame, Phase, Plan, ProgramImage, Subject, Team};

/// Rules that one decision may become where its functions are ambiguous.
const ALTERNATIVES_MAX: usize = 16;

/// Why an object is not recognised.
#[derive(Debug)]
pub(crate) enum Unmatched {
    /// Nothing here can be what the rule means; why, with close names.
    Nothing(String),
    /// It was there when the plan was made, and the program was rebuilt since.
    Gone(String),
}

/// The programs of a command, and the plan whose decisions are recognised in them.
pub(crate) struct Recogniser<'a> {
    /// All programs that the command line names.
    pub programs: &'a [ProgramImage],
    /// The plan; none for rules written by hand.
    pub plan: Option<&'a Plan>,
    /// The plan's program among `programs`.
    pub own: Option<&'a ProgramImage>,
    /// Least size of an object that is placed.
    pub size_min_bytes: u64,
}

impl<'a> Recogniser<'a> {
    /// Every key under which the subject is recognised (rules without a placement), most exact first. `siblings` are the
    /// subjects of the same plan, which share out the sizes of a call site.
    pub fn keys(
        &self,
        what: &Subject,
        siblings: &[&Subject],
        tables: &mut Tables,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Rule>, Unmatched> {
        match what {
            Subject::Symbol {
                symbol,
                module,
                build_id,
                offset,
                size_bytes,
            } => {
                let planned = Symbol {
                    name: symbol.clone(),
                    offset: *offset,
                    size_bytes: *size_bytes,
                };
                self.symbol(planned, module, build_id, tables, warnings)
            }
            Subject::CallSite {
                frames,
                size_bytes,
                order,
                thread,
            } => {
                let bounds = self.size_bounds(what, siblings);
                let rule = Rule {
                    subject: subject::CALL_SITE,
                    thread: thread.unwrap_or(NONE),
                    order: order.map_or([0, NONE], |(first, last)| [first, last]),
                    size_bytes: *size_bytes,
                    size_bounds_bytes: bounds,
                    ..open_rule()
                };
                self.call_site(frames, rule, siblings, tables, warnings)
            }
            // Nothing places it.
            Subject::Code { .. } => Ok(Vec::new()),
            Subject::BrkHeap { size_bytes } => Ok(vec![Rule {
                subject: subject::BRK_HEAP,
                size_bytes: *size_bytes,
                ..open_rule()
            }]),
            Subject::Rest => Ok(vec![Rule {
                subject: subject::REST,
                ..open_rule()
            }]),
            Subject::Heap {
                size_min_bytes,
                size_max_bytes,
            } => Ok(vec![bounded(
                subject::HEAP,
                *size_min_bytes,
                *size_max_bytes,
            )]),
            Subject::Mapping {
                size_min_bytes,
                size_max_bytes,
            } => Ok(vec![bounded(
                subject::MAPPING,
                *size_min_bytes,
                *size_max_bytes,
            )]),
        }
    }

    /// Build-id, file name and address of a team's start routine as it is now.
    pub fn start_routine(&self, team: &Team) -> Option<(String, String, u64)> {
        self.function_now(&team.name, &team.module, &team.build_id, team.offset)
    }

    /// The same of the function that a phase begins with.
    pub fn phase_function(&self, phase: &Phase) -> Option<(String, String, u64)> {
        let Phase {
            function,
            module,
            build_id,
            offset,
            size_bytes,
            ..
        } = phase;
        let module = match (module.as_str(), self.plan) {
            ("", Some(plan)) => &plan.program.executable,
            _ => module,
        };
        match size_bytes {
            // Written by hand, without an address.
            0 => function_of(self.module_now(module, build_id)?, function),
            _ => self.function_now(function, module, build_id, *offset),
        }
    }

    fn function_now(
        &self,
        name: &str,
        module: &str,
        build_id: &str,
        offset: u64,
    ) -> Option<(String, String, u64)> {
        let planned = || Some((build_id.to_owned(), module.to_owned(), offset));
        if self.with_build_id(build_id).is_some() {
            return planned();
        }
        match self.module_now(module, build_id) {
            Some(now) => function_of(now, name),
            None => planned(),
        }
    }

    fn modules(&self) -> impl Iterator<Item = &'a ModuleImage> {
        self.programs.iter().flat_map(ProgramImage::modules)
    }

    /// The module that the plan calls `name`, as it is now: the plan's own program, or a library of
    /// the same name up to its version.
    fn module_now(&self, name: &str, build_id: &str) -> Option<&'a ModuleImage> {
        if name.is_empty() {
            return None;
        }
        if let Some(own) = self.own.filter(|_| self.is_own(name, build_id)) {
            return Some(&own.program);
        }
        self.modules()
            .find(|module| module.file_name == name)
            .or_else(|| {
                self.modules()
                    .find(|module| stem(&module.file_name) == stem(name))
            })
    }

    fn is_own(&self, name: &str, build_id: &str) -> bool {
        self.plan.is_some_and(|plan| {
            plan.program.executable == name
                || !build_id.is_empty() && plan.program.build_id == build_id
        })
    }

    fn with_build_id(&self, build_id: &str) -> Option<&'a ModuleImage> {
        self.modules()
            .find(|module| !build_id.is_empty() && module.build_id == build_id)
    }

    fn symbol(
        &self,
        planned: Symbol,
        module: &str,
        build_id: &str,
        tables: &mut Tables,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Rule>, Unmatched> {
        let name = &planned.name;
        let found: Vec<(&ModuleImage, Symbol)> = if let Some(same) = self.with_build_id(build_id) {
            let named = same.objects(name);
            let as_planned = planned.size_bytes > 0
                && (named.is_empty() || named.iter().any(|symbol| symbol.offset == planned.offset));
            match as_planned {
                true => vec![(same, planned.clone())],
                false => named
                    .into_iter()
                    .map(|symbol| (same, symbol.clone()))
                    .collect(),
            }
        } else {
            let now = self.module_now(module, build_id);
            if !module.is_empty() && now.is_none() {
                if !build_id.is_empty() && planned.size_bytes > 0 {
                    // Loaded later, or by another program of the run: recognised if it is this build.
                    let module = tables.module(build_id, module);
                    return Ok(vec![static_key(module, &planned)]);
                }
                let loaded: Vec<&str> = self
                    .modules()
                    .map(|module| module.file_name.as_str())
                    .collect();
                let loaded = if loaded.is_empty() {
                    "nothing".to_owned()
                } else {
                    loaded.join(", ")
                };
                return Err(Unmatched::Nothing(format!(
                    "`{module}` is not loaded at start; there is {loaded}"
                )));
            }
            let mut found: Vec<(&ModuleImage, Symbol)> = Vec::new();
            for program in self.programs {
                let has_it = |module: &&ModuleImage| !module.objects(name).is_empty();
                // The first module that has it, as the loader does.
                let Some(module) = now.filter(has_it).or_else(|| match module {
                    "" => program.modules().find(has_it),
                    _ => None,
                }) else {
                    continue;
                };
                if found.iter().any(|(known, _)| known.path == module.path) {
                    continue;
                }
                let mut named = module.objects(name);
                if named
                    .iter()
                    .any(|symbol| symbol.size_bytes == planned.size_bytes)
                {
                    named.retain(|symbol| symbol.size_bytes == planned.size_bytes);
                }
                found.extend(named.into_iter().map(|symbol| (module, symbol.clone())));
            }
            found
        };
        if found.is_empty() {
            let now = self
                .with_build_id(build_id)
                .or_else(|| self.module_now(module, build_id));
            return Err(self.no_symbol(name, now, build_id));
        }
        if found.len() > 1 && self.programs.len() <= 1 {
            warnings.push(format!(
                "`{name}` is the name of {} static objects; all are placed",
                found.len()
            ));
        }
        for (_, symbol) in &found {
            if planned.size_bytes > 0 && symbol.size_bytes != planned.size_bytes {
                warnings.push(format!(
                    "`{name}` has {} bytes now and had {} when the plan was made",
                    symbol.size_bytes, planned.size_bytes
                ));
            }
            if symbol.size_bytes < self.size_min_bytes {
                warnings.push(format!(
                    "`{name}` has {} bytes, less than two pages, and stays where it is",
                    symbol.size_bytes
                ));
            }
        }
        let key = |(module, symbol): (&ModuleImage, Symbol)| {
            let module = tables.module(&module.build_id, &module.file_name);
            static_key(module, &symbol)
        };
        Ok(found.into_iter().map(key).collect())
    }

    fn no_symbol(&self, name: &str, now: Option<&ModuleImage>, build_id: &str) -> Unmatched {
        let place = match (now, self.programs) {
            (Some(module), _) => format!("{} has no static object `{name}`", module.file_name),
            (None, [one]) if one.is_script => format!(
                "{} is a script, and its interpreter {} with the libraries it loads has no static object \
                 `{name}`; run the program itself",
                one.command.display(),
                one.program.file_name,
            ),
            (None, [one]) if one.libraries().is_empty() => {
                format!("{} has no static object `{name}`", one.program.file_name)
            }
            (None, [one]) => {
                format!(
                    "neither {} nor a library it loads has a static object `{name}`",
                    one.program.file_name
                )
            }
            (None, _) => format!("no program of the command has a static object `{name}`"),
        };
        let close = match now {
            Some(module) => did_you_mean(name, module.object_names()),
            None => did_you_mean(name, self.modules().flat_map(ModuleImage::object_names)),
        };
        let message = format!("{place}{close}");
        match build_id.is_empty() || self.with_build_id(build_id).is_some() {
            true => Unmatched::Nothing(message),
            false => Unmatched::Gone(message),
        }
    }

    fn call_site(
        &self,
        frames: &[CallSiteFrame],
        rule: Rule,
        siblings: &[&Subject],
        tables: &mut Tables,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Rule>, Unmatched> {
        let mut stacks = self.stacks(frames, Lines::Kept, warnings)?;
        // An edit above shifts every line: where the functions alone say which call site is meant,
        // they will do.
        if stacks.iter().any(|stack| stack.is_weak) && is_only_one_by_name(frames, siblings) {
            for stack in self.stacks(frames, Lines::Ignored, warnings)? {
                if !stacks.contains(&stack) {
                    stacks.push(stack);
                }
            }
        }
        let key = |stack: Stack| {
            let mut rule = rule;
            if stack.is_weak {
                rule.flags |= RULE_WEAK;
                let [least, greatest] = size_class(rule.size_bytes);
                let [low, high] = rule.size_bounds_bytes;
                rule.size_bounds_bytes = [least.max(low), greatest.min(high)];
            }
            let frames: Vec<(u32, u64, u64)> = stack
                .ranges
                .iter()
                .map(|range| {
                    (
                        tables.module(&range.build_id, &range.module),
                        range.low,
                        range.high,
                    )
                })
                .collect();
            rule.frames = tables.add_frames(frames);
            rule
        };
        let has_room = |rule: &Rule| rule.size_bounds_bytes[0] <= rule.size_bounds_bytes[1];
        Ok(stacks.into_iter().map(key).filter(has_room).collect())
    }

    /// Every combination of what the frames may be here, most exact first.
    fn stacks(
        &self,
        frames: &[CallSiteFrame],
        lines: Lines,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Stack>, Unmatched> {
        let mut stacks: Vec<Stack> = vec![Stack::default()];
        for (depth, frame) in frames.iter().enumerate() {
            let ranges = self.frame(frame, depth, lines, warnings)?;
            let extended = stacks
                .iter()
                .flat_map(|stack| ranges.iter().map(|range| stack.with(range)));
            stacks = extended.take(ALTERNATIVES_MAX).collect();
        }
        Ok(stacks)
    }

    /// The ranges of return addresses that a frame may have here.
    fn frame(
        &self,
        frame: &CallSiteFrame,
        depth: usize,
        lines: Lines,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Range>, Unmatched> {
        let CallSiteFrame {
            module,
            build_id,
            offset,
            ..
        } = frame;
        let planned = || Range::new(build_id, module, *offset, *offset, false);
        let by_hand = *offset == 0;
        if self.with_build_id(build_id).is_some() && !by_hand {
            return Ok(vec![planned()]);
        }
        let own = module.is_empty() || self.is_own(module, build_id);
        if own && self.own.is_none() && !self.programs.is_empty() && module.is_empty() {
            return self.function(
                frame,
                self.programs.iter().map(|one| &one.program),
                None,
                warnings,
            );
        }
        let now = match module.as_str() {
            "" => self.own.map(|own| &own.program),
            name => self.module_now(name, build_id),
        };
        match now {
            Some(now) if by_hand => self.function(frame, std::iter::once(now), None, warnings),
            // A caller without a name tells little: any call from the program.
            Some(now) if own && frame.function.is_empty() && depth > 0 => Ok(vec![Range::new(
                &now.build_id,
                &now.file_name,
                0,
                u64::MAX,
                true,
            )]),
            Some(now) if own => self.function(frame, std::iter::once(now), Some(lines), warnings),
            // Another build of a library: any call from it. The program's own frames still decide.
            Some(now) => Ok(vec![Range::new(
                &now.build_id,
                &now.file_name,
                0,
                u64::MAX,
                false,
            )]),
            None if by_hand => Err(Unmatched::Nothing(format!(
                "`{module}` is not loaded at start"
            ))),
            // Loaded later: this build exactly, any other build anywhere in it.
            None if build_id.is_empty() || own => Ok(vec![planned()]),
            None => Ok(vec![planned(), Range::new("", module, 0, u64::MAX, false)]),
        }
    }

    /// By function, and by line where there is one: as written by hand, or as the second key of a
    /// rebuilt program (`second_key`).
    fn function(
        &self,
        frame: &CallSiteFrame,
        modules: impl Iterator<Item = &'a ModuleImage>,
        second_key: Option<Lines>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Range>, Unmatched> {
        let is_weak = second_key.is_some();
        let CallSiteFrame { function, line, .. } = frame;
        let line = if second_key == Some(Lines::Ignored) {
            &0
        } else {
            line
        };
        let gone = |message: String| {
            if is_weak {
                Unmatched::Gone(message)
            } else {
                Unmatched::Nothing(message)
            }
        };
        let modules: Vec<&ModuleImage> = modules.collect();
        let names: Vec<&str> = modules
            .iter()
            .map(|module| module.file_name.as_str())
            .collect();
        let names = names.join(", ");
        if function.is_empty() {
            return Err(gone(format!(
                "{names} was rebuilt, and a frame of the call site has no function name"
            )));
        }
        let found: Vec<(&ModuleImage, &Symbol)> = modules
            .iter()
            .flat_map(|module| {
                module
                    .functions(function)
                    .into_iter()
                    .map(|symbol| (*module, symbol))
            })
            .collect();
        if found.is_empty() && !is_weak {
            let inlined: Vec<Range> = modules
                .iter()
                .flat_map(|module| {
                    let ranges = module.inlined_ranges(function, *line).into_iter();
                    ranges.map(|(low, high)| {
                        Range::new(&module.build_id, &module.file_name, low, high, false)
                    })
                })
                .collect();
            if !inlined.is_empty() {
                return Ok(inlined);
            }
        }
        if found.is_empty() {
            let close = did_you_mean(
                function,
                modules.iter().flat_map(|module| module.function_names()),
            );
            return Err(gone(format!("{names} has no function `{function}`{close}")));
        }
        let lines: Vec<Range> = found
            .iter()
            .filter(|_| *line > 0)
            .flat_map(|(module, symbol)| {
                let ranges = module.line_ranges(symbol, *line).into_iter();
                ranges.map(|(low, high)| {
                    Range::new(&module.build_id, &module.file_name, low, high, is_weak)
                })
            })
            .collect();
        if !lines.is_empty() {
            return Ok(lines);
        }
        if *line > 0 && !is_weak {
            let message =
                format!("`{function}` has no code of line {line}, or {names} no line table (-g)");
            return Err(Unmatched::Nothing(message));
        }
        if *line > 0 {
            let message = format!(
                "line {line} of `{function}` is not found in {names}; the whole function is taken"
            );
            if !warnings.contains(&message) {
                warnings.push(message);
            }
        }
        let whole = |(module, symbol): (&ModuleImage, &Symbol)| {
            let (low, high) = (
                symbol.offset.saturating_add(1),
                symbol.offset.saturating_add(symbol.size_bytes),
            );
            Range::new(&module.build_id, &module.file_name, low, high, is_weak)
        };
        Ok(found.into_iter().map(whole).collect())
    }

    /// The sizes that a decision takes of its call site's: all from two pages up, or its part where
    /// several decisions share them (bounded half-way, in powers, between planned sizes). Decisions
    /// told apart by order count every allocation that is always logged.
    fn size_bounds(&self, what: &Subject, siblings: &[&Subject]) -> [u64; 2] {
        let Subject::CallSite {
            frames,
            size_bytes,
            order: None,
            thread,
        } = what
        else {
            return [LARGE_ALLOCATION_BYTES as u64, u64::MAX];
        };
        let sizes = || {
            siblings.iter().filter_map(|sibling| match sibling {
                Subject::CallSite {
                    frames: others,
                    size_bytes,
                    order: None,
                    thread: by,
                } if others == frames && by == thread => Some(*size_bytes),
                _ => None,
            })
        };
        let half_way = |below: u64, above: u64| {
            // The product of two sizes below 2^64 has an exact integer root.
            let root = (u128::from(below) * u128::from(above)).isqrt();
            (root as u64).clamp(below, above - 1)
        };
        let below = sizes().filter(|other| other < size_bytes).max();
        let above = sizes().filter(|other| other > size_bytes).min();
        let least = below.map_or(self.size_min_bytes, |below| {
            half_way(below, *size_bytes) + 1
        });
        let greatest = above.map_or(u64::MAX, |above| half_way(*size_bytes, above));
        [least, greatest]
    }
}

/// What becomes of the lines of a rebuilt program's call sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// They have to be the planned ones.
    Kept,
    /// Functions alone decide.
    Ignored,
}

/// Is every call site of the same function names the very same one?
fn is_only_one_by_name(frames: &[CallSiteFrame], siblings: &[&Subject]) -> bool {
    siblings.iter().all(|sibling| match sibling {
        Subject::CallSite { frames: others, .. } => {
            let same_names = frames.len() == others.len()
                && frames
                    .iter()
                    .zip(others)
                    .all(|(frame, other)| frame.function == other.function);
            !same_names || others == frames
        }
        _ => true,
    })
}

/// A range of return addresses in a module.
#[derive(Clone, Debug, PartialEq)]
struct Range {
    build_id: String,
    module: String,
    low: u64,
    high: u64,
    is_weak: bool,
}

impl Range {
    fn new(build_id: &str, module: &str, low: u64, high: u64, is_weak: bool) -> Self {
        Self {
            build_id: build_id.to_owned(),
            module: module.to_owned(),
            low,
            high,
            is_weak,
        }
    }
}

/// Build-id, file name and address of a module's function; the lowest of several of the name.
fn function_of(module: &ModuleImage, name: &str) -> Option<(String, String, u64)> {
    let start = *module.functions(name).first()?;
    Some((
        module.build_id.clone(),
        module.file_name.clone(),
        start.offset,
    ))
}

/// Ranges of consecutive frames, innermost first.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stack {
    ranges: Vec<Range>,
    is_weak: bool,
}

impl Stack {
    fn with(&self, range: &Range) -> Self {
        let mut longer = self.clone();
        longer.ranges.push(range.clone());
        longer.is_weak |= range.is_weak;
        longer
    }
}

fn static_key(module: u32, symbol: &Symbol) -> Rule {
    let Symbol {
        offset, size_bytes, ..
    } = *symbol;
    Rule {
        subject: subject::STATIC,
        module,
        offset,
        size_bytes,
        ..open_rule()
    }
}

fn bounded(kind: u32, least: u64, greatest: u64) -> Rule {
    Rule {
        subject: kind,
        size_bounds_bytes: [least, greatest],
        ..open_rule()
    }
}

/// Least and greatest size of the power-of-two class that a size is in.
fn size_class(size_bytes: u64) -> [u64; 2] {
    let least = 1 << size_bytes.max(1).ilog2();
    [least, least + (least - 1)]
}

/// A library's name without its version: `libm.so` of `libm.so.6`, `libopenblas` of
/// `libopenblas-r0.3.21.so`.
fn stem(file_name: &str) -> &str {
    let library = match file_name.find(".so") {
        Some(end) => &file_name[..end],
        None => return file_name,
    };
    match library.find("-r").or_else(|| library.rfind('-')) {
        Some(version) if library[version..].bytes().any(|byte| byte.is_ascii_digit()) => {
            &library[..version]
        }
        _ => library,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_versions() {
        assert_eq!(stem("libm.so.6"), "libm");
        assert_eq!(stem("libopenblas-r0.3.21.so"), "libopenblas");
        assert_eq!(stem("libc-2.31.so"), "libc");
        assert_eq!(stem("cg"), "cg");
        assert_eq!(stem("my-tool"), "my-tool");
    }

    #[test]
    fn size_classes_are_powers_of_two() {
        assert_eq!(size_class(1 << 20), [1 << 20, (2 << 20) - 1]);
        assert_eq!(size_class((1 << 20) + 5), [1 << 20, (2 << 20) - 1]);
        assert_eq!(size_class(0), [1, 1]);
        assert_eq!(size_class(u64::MAX), [1 << 63, u64::MAX]);
    }

    #[test]
    fn decisions_of_one_call_site_share_out_its_sizes() {
        let site = |size_bytes, order| Subject::CallSite {
            frames: Vec::new(),
            size_bytes,
            order,
            thread: None,
        };
        let subjects = [
            site(1 << 20, None),
            site(4 << 20, None),
            site(4 << 20, Some((0, 0))),
        ];
        let siblings: Vec<&Subject> = subjects.iter().collect();
        let recogniser = Recogniser {
            programs: &[],
            plan: None,
            own: None,
            size_min_bytes: 8192,
        };
        let bounds = |subject| recogniser.size_bounds(subject, &siblings);
        assert_eq!(bounds(&subjects[0]), [8192, 2 << 20]);
        assert_eq!(bounds(&subjects[1]), [(2 << 20) + 1, u64::MAX]);
        assert_eq!(bounds(&subjects[2]), [4096, u64::MAX]);
        let close = [site(8192, None), site(8193, None)];
        let siblings: Vec<&Subject> = close.iter().collect();
        assert_eq!(recogniser.size_bounds(&close[0], &siblings), [8192, 8192]);
        assert_eq!(
            recogniser.size_bounds(&close[1], &siblings),
            [8193, u64::MAX]
        );
    }
}
