//! Heap objects: finds the call sites that a plan names in the programs as they are now, and the sizes of allocations
//! that each decision takes.

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::compact_plan::{RULE_WEAK, Rule};

use super::{NotRecognised, Recogniser};
use crate::compact::Tables;
use crate::module::{ModuleImage, Symbol};
use crate::suggest::did_you_mean;
use crate::{CallSiteFrame, Subject};

/// Most rules that one decision may become if its functions are ambiguous.
const ALTERNATIVES_MAX: usize = 16;

impl<'a> Recogniser<'a> {
    /// The keys of a call site, most exact first; `rule` lacks its frames.
    pub(super) fn call_site(
        &self,
        frames: &[CallSiteFrame],
        rule: Rule,
        siblings: &[&Subject],
        tables: &mut Tables,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Rule>, NotRecognised> {
        let mut stacks = self.stacks(frames, Lines::Kept, warnings)?;
        // An edit above a call site shifts its line: if functions alone identify the call site, lines are ignored.
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

    /// Every combination of addresses that the frames may have here, most exact first.
    fn stacks(
        &self,
        frames: &[CallSiteFrame],
        lines: Lines,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Stack>, NotRecognised> {
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
    ) -> Result<Vec<Range>, NotRecognised> {
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
            // A caller without a name tells little: any call from the program fits.
            Some(now) if own && frame.function.is_empty() && depth > 0 => Ok(vec![Range::new(
                &now.build_id,
                &now.file_name,
                0,
                u64::MAX,
                true,
            )]),
            Some(now) if own => self.function(frame, std::iter::once(now), Some(lines), warnings),
            // Another build of a library: any call from it fits. The program's own frames still decide.
            Some(now) => Ok(vec![Range::new(
                &now.build_id,
                &now.file_name,
                0,
                u64::MAX,
                false,
            )]),
            None if by_hand => Err(NotRecognised::Nothing(format!(
                "`{module}` is not loaded at start"
            ))),
            // Loaded later: exactly this build, or any address in another build.
            None if build_id.is_empty() || own => Ok(vec![planned()]),
            None => Ok(vec![planned(), Range::new("", module, 0, u64::MAX, false)]),
        }
    }

    /// Ranges by function, and by line if there is one: of a frame written by hand, or as the second key of a rebuilt
    /// program (`second_key`).
    fn function(
        &self,
        frame: &CallSiteFrame,
        modules: impl Iterator<Item = &'a ModuleImage>,
        second_key: Option<Lines>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Range>, NotRecognised> {
        let is_weak = second_key.is_some();
        let function = &frame.function;
        let line = match second_key {
            Some(Lines::Ignored) => 0,
            _ => frame.line,
        };
        let unmatched = match is_weak {
            true => NotRecognised::Gone,
            false => NotRecognised::Nothing,
        };
        let range = |module: &ModuleImage, (low, high)| {
            Range::new(&module.build_id, &module.file_name, low, high, is_weak)
        };
        let modules: Vec<&ModuleImage> = modules.collect();
        let names: Vec<&str> = modules
            .iter()
            .map(|module| module.file_name.as_str())
            .collect();
        let names = names.join(", ");
        if function.is_empty() {
            return Err(unmatched(format!(
                "{names} was rebuilt, and a frame of the call site has no function name"
            )));
        }
        let mut found: Vec<(&ModuleImage, &Symbol)> = Vec::new();
        for module in &modules {
            let symbols = module.functions(function).into_iter();
            found.extend(symbols.map(|symbol| (*module, symbol)));
        }
        if found.is_empty() {
            let mut inlined: Vec<Range> = Vec::new();
            for module in modules.iter().filter(|_| !is_weak) {
                let ranges = module.inlined_ranges(function, line).into_iter();
                inlined.extend(ranges.map(|bounds| range(module, bounds)));
            }
            if !inlined.is_empty() {
                return Ok(inlined);
            }
            let all = modules.iter().flat_map(|module| module.function_names());
            let close = did_you_mean(function, all);
            let message = format!("{names} has no function `{function}`{close}");
            return Err(unmatched(message));
        }
        if line > 0 {
            let mut lines: Vec<Range> = Vec::new();
            for (module, symbol) in &found {
                let ranges = module.line_ranges(symbol, line).into_iter();
                lines.extend(ranges.map(|bounds| range(module, bounds)));
            }
            if !lines.is_empty() {
                return Ok(lines);
            }
            if !is_weak {
                return Err(unmatched(format!(
                    "`{function}` has no code of line {line}, or {names} no line table (-g)"
                )));
            }
            let message = format!(
                "line {line} of `{function}` is not found in {names}; the whole function is taken"
            );
            if !warnings.contains(&message) {
                warnings.push(message);
            }
        }
        let whole = |(module, symbol): (&ModuleImage, &Symbol)| {
            let low = symbol.offset.saturating_add(1);
            let high = symbol.offset.saturating_add(symbol.size_bytes);
            range(module, (low, high))
        };
        Ok(found.into_iter().map(whole).collect())
    }

    /// The sizes of its call site's allocations that a decision takes: all from two pages up. Several decisions about a
    /// call site divide the sizes at the geometric means of planned sizes. Decisions with an order count every
    /// allocation that is always logged.
    pub(super) fn size_bounds(&self, what: &Subject, siblings: &[&Subject]) -> [u64; 2] {
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
            // The product of two 64-bit sizes fits into 128 bits.
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

/// Use of lines in the call sites of a rebuilt program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// Lines have to be the planned ones.
    Kept,
    /// Functions alone decide.
    Ignored,
}

/// True if all call sites with the same function names are the same call site.
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

/// Least and greatest size of the power-of-two class that a size is in.
fn size_class(size_bytes: u64) -> [u64; 2] {
    let least = 1 << size_bytes.max(1).ilog2();
    [least, least + (least - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

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
