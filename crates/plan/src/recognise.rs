//! Turns a plan's subjects into keys that the preload library compares: modules, addresses and sizes of the programs as
//! they are now.

mod call_site;

use nearpage_wire::compact_plan::{NONE, Rule, subject};

use crate::compact::{Tables, open_rule};
use crate::module::{ModuleImage, Symbol};
use crate::suggest::did_you_mean;
use crate::{Phase, Plan, ProgramImage, Subject, Team};

/// Reason why an object is not recognised.
#[derive(Debug)]
pub(crate) enum NotRecognised {
    /// Nothing here can be what the rule means; the message suggests close names.
    Nothing(String),
    /// The object existed when the plan was made, and the program was rebuilt since.
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
    /// Rules without a placement for every key under which the subject is recognised, most exact first. `siblings`: the
    /// subjects of the same plan, which share out the sizes of a call site.
    pub fn keys(
        &self,
        what: &Subject,
        siblings: &[&Subject],
        tables: &mut Tables,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Rule>, NotRecognised> {
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
            // No rule places code within a process.
            Subject::Code { .. } => Ok(Vec::new()),
            Subject::BrkHeap { size_bytes } => Ok(vec![Rule {
                subject: subject::BRK_HEAP,
                size_bytes: *size_bytes,
                ..open_rule()
            }]),
            Subject::Unmatched => Ok(vec![Rule {
                subject: subject::UNMATCHED,
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

    /// Build-id, file name and address of a team's start routine in the current build.
    pub fn start_routine(&self, team: &Team) -> Option<(String, String, u64)> {
        self.function_now(&team.name, &team.module, &team.build_id, team.offset)
    }

    /// Build-id, file name and address, in the current build, of the function that a phase begins with.
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

    /// The current module for `name` in the plan: the plan's own program, or a library of the same name up to its
    /// version.
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
    ) -> Result<Vec<Rule>, NotRecognised> {
        let name = &planned.name;
        let same_build = self.with_build_id(build_id);
        let now = same_build.or_else(|| self.module_now(module, build_id));
        let found = if let Some(same) = same_build {
            in_same_build(same, &planned)
        } else if module.is_empty() || now.is_some() {
            self.by_name(&planned, module, now)
        } else if !build_id.is_empty() && planned.size_bytes > 0 {
            // Loaded later, or by another program of the run: recognised only if it is this build.
            let module = tables.module(build_id, module);
            return Ok(vec![static_key(module, &planned)]);
        } else {
            return Err(self.not_loaded(module));
        };
        if found.is_empty() {
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

    /// The static objects of a name, by program: in `now`, or, if the plan names no module, in the first module that
    /// has one. Objects of another size count only if none has the planned size.
    fn by_name(
        &self,
        planned: &Symbol,
        module: &str,
        now: Option<&'a ModuleImage>,
    ) -> Vec<(&'a ModuleImage, Symbol)> {
        let name = &planned.name;
        let has_it = |module: &&ModuleImage| !module.objects(name).is_empty();
        let mut found: Vec<(&ModuleImage, Symbol)> = Vec::new();
        for program in self.programs {
            // The loader, too, takes the first module that has the object.
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
            let has_size = |symbol: &Symbol| symbol.size_bytes == planned.size_bytes;
            if named.iter().any(|symbol| has_size(symbol)) {
                named.retain(|symbol| has_size(symbol));
            }
            found.extend(named.into_iter().map(|symbol| (module, symbol.clone())));
        }
        found
    }

    fn not_loaded(&self, module: &str) -> NotRecognised {
        let loaded = self.modules().map(|module| module.file_name.as_str());
        let loaded: Vec<&str> = loaded.collect();
        let loaded = match loaded.is_empty() {
            true => "nothing".to_owned(),
            false => loaded.join(", "),
        };
        NotRecognised::Nothing(format!(
            "`{module}` is not loaded at start; there is {loaded}"
        ))
    }

    fn no_symbol(&self, name: &str, now: Option<&ModuleImage>, build_id: &str) -> NotRecognised {
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
            true => NotRecognised::Nothing(message),
            false => NotRecognised::Gone(message),
        }
    }
}

/// The planned object, in a module that is the build that the plan was made with.
fn in_same_build<'a>(same: &'a ModuleImage, planned: &Symbol) -> Vec<(&'a ModuleImage, Symbol)> {
    let named = same.objects(&planned.name);
    let as_planned = planned.size_bytes > 0
        && (named.is_empty() || named.iter().any(|symbol| symbol.offset == planned.offset));
    if as_planned {
        return vec![(same, planned.clone())];
    }
    let named = named.into_iter();
    named.map(|symbol| (same, symbol.clone())).collect()
}

/// Build-id, file name and address of a module's function; the lowest of several functions with the name.
fn function_of(module: &ModuleImage, name: &str) -> Option<(String, String, u64)> {
    let start = *module.functions(name).first()?;
    Some((
        module.build_id.clone(),
        module.file_name.clone(),
        start.offset,
    ))
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
}
