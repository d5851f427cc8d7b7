//! Parses the text of a setup.

use super::{Cache, FIRST_LINE, Moves, Positions, Setup, SetupError, Tlb};

/// Settings with one to three numbers.
const NAMES: [&str; 15] = [
    "page_bytes",
    "line_bytes",
    "l1_fetch",
    "l1_data",
    "l2",
    "l3",
    "tlb",
    "tlb_fetch",
    "tlb_second",
    "quantum",
    "sample_period",
    "keep_hits",
    "dependences",
    "from_mark",
    "serial",
];

/// Count of a setting's numbers.
fn numbers_of(name: &str) -> usize {
    match name {
        "l1_fetch" | "l1_data" | "l2" | "l3" => 2,
        "tlb" | "tlb_fetch" | "tlb_second" => 3,
        _ => 1,
    }
}

/// A line and its numbers.
type Numbers<'a> = (&'a str, [u64; 3]);

/// Settings of the lines, each at most once.
#[derive(Default)]
struct Settings<'a> {
    /// In the order of [`NAMES`].
    numbers: [Option<Numbers<'a>>; NAMES.len()],
    cpu_nodes: Option<&'a str>,
    thread_cpus: Option<&'a str>,
    thread_moves: Option<&'a str>,
}

impl<'a> Settings<'a> {
    fn add(&mut self, line: &'a str) -> Result<(), SetupError<'a>> {
        let wrong = SetupError::Line(line);
        let (name, words) = line.split_once(' ').ok_or(wrong)?;
        let list = match name {
            "cpu_nodes" => Some(&mut self.cpu_nodes),
            "thread_cpus" => Some(&mut self.thread_cpus),
            "thread_moves" => Some(&mut self.thread_moves),
            _ => None,
        };
        if let Some(list) = list {
            // Spaces and carriage returns at the end of a line are no part of the list.
            return match list.replace(words.trim_end()) {
                Some(_) => Err(wrong),
                None => Ok(()),
            };
        }
        let place = NAMES.iter().position(|known| *known == name).ok_or(wrong)?;
        let mut values = [0; 3];
        let mut count = 0;
        for word in words.split_ascii_whitespace() {
            *values.get_mut(count).ok_or(wrong)? = word.parse().map_err(|_| wrong)?;
            count += 1;
        }
        if count != numbers_of(name) || self.numbers[place].replace((line, values)).is_some() {
            return Err(wrong);
        }
        Ok(())
    }

    fn get(&self, name: &'static str) -> Option<Numbers<'a>> {
        let place = NAMES.iter().position(|known| *known == name);
        place.and_then(|place| self.numbers[place])
    }

    fn must(&self, name: &'static str) -> Result<Numbers<'a>, SetupError<'a>> {
        self.get(name).ok_or(SetupError::Missing(name))
    }

    fn flag(&self, name: &'static str) -> Result<bool, SetupError<'a>> {
        match self.get(name) {
            None => Ok(false),
            Some((_, [value @ (0 | 1), ..])) => Ok(value == 1),
            Some((line, _)) => Err(SetupError::Line(line)),
        }
    }

    fn optional_tlb(&self, name: &'static str) -> Result<Option<Tlb>, SetupError<'a>> {
        self.get(name).map(tlb).transpose()
    }
}

fn fitting(line: &str, value: u64) -> Result<u32, SetupError<'_>> {
    u32::try_from(value).map_err(|_| SetupError::Line(line))
}

fn number((line, [value, ..]): Numbers<'_>) -> Result<u32, SetupError<'_>> {
    fitting(line, value)
}

fn cache((line, [bytes, ways, _]): Numbers<'_>) -> Result<Cache, SetupError<'_>> {
    let ways = fitting(line, ways)?;
    Ok(Cache { bytes, ways })
}

fn tlb((line, [entries, ways, reserved]): Numbers<'_>) -> Result<Tlb, SetupError<'_>> {
    Ok(Tlb {
        entries: fitting(line, entries)?,
        ways: fitting(line, ways)?,
        reserved: fitting(line, reserved)?,
    })
}

impl<'a> Setup<'a> {
    /// Reads a setup.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(text: &'a str) -> Result<Self, SetupError<'a>> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(SetupError::NoSetup);
        }
        let mut settings = Settings::default();
        for line in lines {
            settings.add(line)?;
        }
        let cpu_nodes = settings.cpu_nodes;
        let thread_cpus = settings.thread_cpus;
        let setup = Self {
            page_bytes: number(settings.must("page_bytes")?)?,
            line_bytes: number(settings.must("line_bytes")?)?,
            l1_fetch: cache(settings.must("l1_fetch")?)?,
            l1_data: cache(settings.must("l1_data")?)?,
            l2: cache(settings.must("l2")?)?,
            l3: settings.get("l3").map(cache).transpose()?,
            tlb: tlb(settings.must("tlb")?)?,
            tlb_fetch: settings.optional_tlb("tlb_fetch")?,
            tlb_second: settings.optional_tlb("tlb_second")?,
            cpu_nodes: Positions(cpu_nodes.ok_or(SetupError::Missing("cpu_nodes"))?),
            thread_cpus: Positions(thread_cpus.ok_or(SetupError::Missing("thread_cpus"))?),
            thread_moves: Moves(settings.thread_moves.unwrap_or_default()),
            quantum: number(settings.must("quantum")?)?,
            sample_period: settings.get("sample_period").map_or(Ok(0), number)?,
            keep_hits: settings.flag("keep_hits")?,
            dependences: settings.flag("dependences")?,
            from_mark: settings.flag("from_mark")?,
            serial: settings.flag("serial")?,
        };
        setup.check()?;
        Ok(setup)
    }
}
