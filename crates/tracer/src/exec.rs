//! `exec` calls of the traced program. The kernel would run the new program natively, outside the emulator. So the call is
//! replaced by one that runs the emulator, with the same plugin and options, on the new program.
//!
//! Programs that can't be emulated run natively, as they would without the plugin: programs for other
//! machines, and programs that get other rights (set-user-ID).

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::system;

/// The kernel's limit of an argument's length, and our limit of the number of arguments.
const WORD_BYTES_MAX: usize = 128 << 10;
const WORDS_MAX: usize = 1 << 16;
/// Most interpreters that are scripts themselves: the kernel's limit.
const SCRIPTS_MAX: usize = 4;
const EM_X86_64: [u8; 2] = [62, 0];
const CLASS_64: u8 = 2;

/// The emulator's command for a program.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// The emulator.
    pub path: CString,
    /// Its arguments.
    pub arguments: Vec<CString>,
    /// Its environment.
    pub environment: Vec<CString>,
}

/// What to do with a call of `exec`.
#[derive(Debug, PartialEq, Eq)]
pub enum Exec {
    /// Nothing: it will fail.
    Fails,
    /// Let it run a program that can't be traced.
    Untraced,
    /// Run this command instead.
    Emulated(Command),
}

/// What to do with an `execve` with these arguments, which are addresses of the program. `guest_base` is the host address of
/// the program's address 0.
pub fn what_to_run(arguments: [u64; 3], guest_base: u64) -> Exec {
    let Some((path, words, environment)) = read(arguments, guest_base) else {
        return Exec::Fails;
    };
    let runs = CString::new(path.clone()).is_ok_and(|path| system::may_run(&path));
    if !runs || Path::new(OsStr::from_bytes(&path)).is_dir() {
        return Exec::Fails;
    }
    let emulator =
        fs::read_link("/proc/thread-self/exe").map(|path| path.into_os_string().into_vec());
    let own = fs::read("/proc/thread-self/cmdline").unwrap_or_default();
    let own = own.split(|byte| *byte == 0);
    let command = emulator.ok().and_then(|emulator| {
        let words = emulated(path, words)?;
        let options = options(own.skip(1))?;
        command(emulator, options, words, environment)
    });
    command.map_or(Exec::Untraced, Exec::Emulated)
}

type Word = Vec<u8>;

/// Path, arguments and environment from the program's memory.
fn read([path, words, environment]: [u64; 3], base: u64) -> Option<(Word, Vec<Word>, Vec<Word>)> {
    // A read of this file at an unmapped address fails without a fault.
    let memory = File::open("/proc/thread-self/mem").ok()?;
    let word = |address: u64| {
        let mut word = Vec::new();
        let mut at = address.wrapping_add(base);
        while word.len() <= WORD_BYTES_MAX {
            // Reads up to the end of a page: the next page may not be mapped.
            let mut bytes = [0; 4096];
            let room = bytes.get_mut(..4096 - (at % 4096) as usize)?;
            memory.read_exact_at(room, at).ok()?;
            if let Some(end) = room.iter().position(|byte| *byte == 0) {
                word.extend(room.iter().take(end));
                return Some(word);
            }
            word.extend_from_slice(room);
            at += room.len() as u64;
        }
        None
    };
    let list = |address: u64| {
        let mut list = Vec::new();
        if address == 0 {
            return Some(list);
        }
        let mut at = address.wrapping_add(base);
        loop {
            let mut pointer = [0; 8];
            memory.read_exact_at(&mut pointer, at).ok()?;
            match u64::from_le_bytes(pointer) {
                0 => break,
                pointer => list.push(word(pointer)?),
            }
            if list.len() > WORDS_MAX {
                return None;
            }
            at += 8;
        }
        Some(list)
    };
    Some((word(path)?, list(words)?, list(environment)?))
}

/// The emulator's arguments for a program: `-0` and the program's argument 0, its path, its other arguments.
/// For a script, those of its interpreter. `None` if the program can't be emulated.
fn emulated(mut path: Word, words: Vec<Word>) -> Option<Vec<Word>> {
    let mut words = words.into_iter();
    let mut called = words.next().unwrap_or_default();
    let mut rest: Vec<Word> = words.collect();
    for _ in 0..=SCRIPTS_MAX {
        let file = File::open(OsStr::from_bytes(&path)).ok()?;
        let metadata = file.metadata().ok()?;
        if metadata.mode() & 0o6000 != 0 {
            return None;
        }
        let mut head = [0; 256];
        let read = file.read_at(&mut head, 0).ok()?;
        let head = head.get(..read)?;
        let Some(line) = head.strip_prefix(b"#!") else {
            let fits = head.starts_with(b"\x7fELF")
                && head.get(4) == Some(&CLASS_64)
                && head.get(18..20) == Some(&EM_X86_64);
            let mut all = vec![b"-0".to_vec(), called, path];
            all.append(&mut rest);
            return fits.then_some(all);
        };
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let blank = line.iter().position(u8::is_ascii_whitespace);
        let (interpreter, argument) = line.split_at(blank.unwrap_or(line.len()));
        let argument = argument.trim_ascii();
        rest.insert(0, path);
        if !argument.is_empty() {
            rest.insert(0, argument.to_vec());
        }
        path = interpreter.to_vec();
        called = path.clone();
    }
    None
}

/// The options on the emulator's command line that hold for the next program, too. `None` if `words` is not
/// the command line of an emulator.
fn options<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Vec<Word>> {
    /// Options with a value, in QEMU 7.2 and 10.
    const WITH_A_WORD: [&[u8]; 19] = [
        b"g", b"L", b"s", b"cpu", b"E", b"U", b"0", b"r", b"B", b"R", b"t", b"d", b"dfilter", b"D",
        b"p", b"tb-size", b"seed", b"trace", b"plugin",
    ];
    let mut options = Vec::new();
    let mut plugin = false;
    let mut words = words.map(<[u8]>::to_vec);
    while let Some(option) = words.next() {
        let Some(name) = option.strip_prefix(b"-") else {
            break;
        };
        let name = name.strip_prefix(b"-").unwrap_or(name);
        if name.is_empty() {
            break;
        }
        plugin |= name == b"plugin";
        let word = if WITH_A_WORD.contains(&name) {
            Some(words.next()?)
        } else {
            None
        };
        // These options set the program's argument 0 and environment, which each program has for itself.
        if ![&b"E"[..], b"U", b"0"].contains(&name) {
            options.push(option.clone());
            options.extend(word);
        }
    }
    plugin.then_some(options)
}

/// The command that runs the emulator. The loader's variables are for the program, not for the emulator, so they become
/// options, in which a comma separates variables.
fn command(
    emulator: Word,
    options: Vec<Word>,
    words: Vec<Word>,
    environment: Vec<Word>,
) -> Option<Command> {
    let mut arguments = vec![emulator.clone()];
    arguments.extend(options);
    let (loaders, environment): (Vec<Word>, Vec<Word>) = environment
        .into_iter()
        .partition(|word| word.starts_with(b"LD_"));
    for word in loaders {
        if word.contains(&b',') {
            return None;
        }
        arguments.extend([b"-E".to_vec(), word]);
    }
    arguments.extend(words);
    let terminated = |words: Vec<Word>| {
        let words = words.into_iter().map(|word| CString::new(word).ok());
        words.collect::<Option<Vec<CString>>>()
    };
    Some(Command {
        path: CString::new(OsString::from_vec(emulator).into_vec()).ok()?,
        arguments: terminated(arguments)?,
        environment: terminated(environment)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Word> {
        let words = text.split(' ').filter(|word| !word.is_empty());
        words.map(|word| word.as_bytes().to_vec()).collect()
    }

    fn plain(words: &[CString]) -> String {
        let words = words.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_emulators_own_options_go_on_without_the_programs() {
        let passed_on = |text| {
            let line = words(text);
            let kept = options(line.iter().map(Vec::as_slice));
            kept.map(|kept| kept == words("-plugin t.so,out=o -tb-size 9 -strace"))
        };
        assert_eq!(
            passed_on("-plugin t.so,out=o -tb-size 9 -E A=b -0 name -strace prog -plugin no"),
            Some(true)
        );
        assert_eq!(passed_on("-L /x prog -plugin t.so"), None);
        assert_eq!(passed_on("-plugin"), None);
    }

    #[test]
    fn the_loaders_variables_are_the_programs_alone() {
        let run = |environment| {
            let options = words("-plugin t.so");
            command(
                b"/qemu".to_vec(),
                options,
                words("-0 p /p x"),
                words(environment),
            )
        };
        let run_it = run("LD_PRELOAD=/l.so A=1,2").expect("it can be passed on");
        assert_eq!(
            plain(&run_it.arguments),
            "/qemu -plugin t.so -E LD_PRELOAD=/l.so -0 p /p x"
        );
        assert_eq!(plain(&run_it.environment), "A=1,2");
        assert_eq!(run("LD_PRELOAD=/l,.so"), None);
    }

    #[test]
    fn scripts_run_their_interpreters() {
        let folder = std::env::temp_dir().join(format!("nearpage-exec-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let script = folder.join("script");
        let outer = folder.join("outer");
        fs::write(&script, "#! /bin/sh  -e \nexit\n").expect("our folder");
        fs::write(&outer, format!("#!{}\n", script.display())).expect("our folder");
        let path = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let expected = |middle: &[Word]| {
            let all = [&words("-0 /bin/sh /bin/sh -e")[..], middle, &words("a b")];
            Some(all.concat())
        };
        assert_eq!(
            emulated(path(&script), words("me a b")),
            expected(&[path(&script)])
        );
        assert_eq!(
            emulated(path(&outer), words("me a b")),
            expected(&[path(&script), path(&outer)])
        );
        // A program for another machine, and a script that is its own interpreter.
        fs::write(&script, "\x7fELF\x01").expect("our folder");
        assert_eq!(emulated(path(&script), words("me")), None);
        fs::write(&script, format!("#!{}\n", script.display())).expect("our folder");
        assert_eq!(emulated(path(&script), words("me")), None);
        fs::remove_dir_all(&folder).expect("it is ours");
    }
}
