//! Functions, files and lines of instructions whose program is not available. An imported recording has them in a file,
//! a line for each instruction: address (hexadecimal), line, function and file, separated by tabs.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::{Frame, Module, ModuleId, folder};

/// Path of the module that stands for all imported code. Its offsets are addresses.
pub(crate) const MODULE: &str = "[imported]";
const FILE: &str = "source-lines.tsv";
/// Most bytes of the file that are read: some million instructions.
const BYTES_MAX: u64 = 256 << 20;

/// Place of an instruction in its program's source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SourceLine {
    /// Empty if unknown.
    pub function: String,
    /// Empty if unknown.
    pub file: String,
    /// 0 if unknown.
    pub line: u32,
}

/// Known lines, by address of the instruction.
pub(crate) type SourceLines = FxHashMap<u64, SourceLine>;

/// The file with a module's lines, if the module is imported code.
pub(crate) fn map_of(folder: &Path, module: &Module) -> Option<PathBuf> {
    (module.path == MODULE).then(|| folder.join(FILE))
}

/// Writes the file of a recording in `folder`.
pub(crate) fn write(folder: &Path, lines: &SourceLines) -> io::Result<()> {
    let mut sorted: Vec<(&u64, &SourceLine)> = lines.iter().collect();
    sorted.sort_unstable_by_key(|(address, _)| **address);
    let mut text = String::new();
    for (address, known) in sorted {
        let (function, file) = (plain(&known.function), plain(&known.file));
        let _ = writeln!(text, "{address:x}\t{}\t{function}\t{file}", known.line);
    }
    folder::replace(&folder.join(FILE), text.as_bytes())
}

/// Replaces control characters, so that a name ends no field and no line.
fn plain(name: &str) -> String {
    name.replace(|letter: char| letter.is_control(), " ")
}

/// Reads the file; invalid lines are left out.
pub(crate) fn read(file: &Path) -> io::Result<SourceLines> {
    let mut bytes = Vec::new();
    nearpage_files::open(file)?
        .take(BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(lines(&bytes))
}

/// Parses the file's bytes; invalid lines are left out.
pub(crate) fn lines(bytes: &[u8]) -> SourceLines {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter_map(line).collect()
}

fn line(text: &str) -> Option<(u64, SourceLine)> {
    let mut fields = text.split('\t');
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let line = fields.next()?.parse().ok()?;
    let (function, file) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let known = SourceLine {
        function,
        file,
        line,
    };
    fields.next().is_none().then_some((address, known))
}

/// The frame of the instruction at `offset`.
pub(crate) fn frame(lines: &SourceLines, offset: u64) -> Option<Frame> {
    let known = lines.get(&offset)?;
    Some(Frame {
        function: known.function.clone(),
        file: known.file.clone(),
        line: known.line,
        ..Frame::unknown(ModuleId(0), offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_lines_are_read_back() {
        let known = |function: &str, file: &str, line| SourceLine {
            function: function.to_owned(),
            file: file.to_owned(),
            line,
        };
        let lines = SourceLines::from_iter([
            (0x40_1000, known("solve(double*, int)", "src/cg.c", 120)),
            (0x40_1004, known("", "a\tb\nc.c", 0)),
            (u64::MAX, known("main", "", 7)),
        ]);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &lines).unwrap();
        let mut expected = lines;
        expected.insert(0x40_1004, known("", "a b c.c", 0));
        assert_eq!(read(&folder.path().join(FILE)).unwrap(), expected);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        let text =
            b"x\t1\tf\ta.c\n10\t-1\tf\ta.c\n10\t1\tf\n10\t1\tf\ta.c\tmore\n\xff\n20\t2\tg\tb.c";
        let found = lines(text);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0x20]);
    }
}
