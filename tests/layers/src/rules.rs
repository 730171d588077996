//! The two rules, and the order that the code itself suggests.

use std::fmt::Write;

use crate::arrows::Arrow;
use crate::circles::components;
use crate::order::{Order, Room};
use crate::source::Crate;

/// The most files that may need each other in a circle.
pub const LARGEST_CIRCLE: usize = 5;

/// What the rules say about a crate.
#[derive(Debug)]
pub struct Findings {
    /// Each with the file and line that it is about.
    pub violations: Vec<String>,
    /// How many rooms have a layer, without the root.
    pub rooms: usize,
    /// How many files were looked at, without those of tests.
    pub files: usize,
    /// How many arrows there are between them.
    pub arrows: usize,
    /// How many files the largest circle has; 0 if there is none.
    pub largest_circle: usize,
}

/// Compares a crate and its arrows with the order that `statement` (the name of a file) states for it.
pub fn check(krate: &Crate, arrows: &[Arrow], order: &Order, statement: &str) -> Findings {
    let mut violations = krate.lost.clone();
    let rooms = Rooms::of(krate, order, statement, &mut violations);
    for arrow in arrows {
        rooms.check_direction(krate, arrow, &mut violations);
    }
    let circles = circles(krate, arrows);
    for circle in &circles {
        rooms.check_circle(krate, arrows, circle, &mut violations);
    }
    Findings {
        violations,
        rooms: order.rooms.len(),
        files: (0..krate.files.len()).filter(|file| !krate.is_test_file(*file)).count(),
        arrows: arrows.len(),
        largest_circle: circles.iter().map(Vec::len).max().unwrap_or(0),
    }
}

/// Floors of rooms, lowest first: each room stands just above the highest room that it needs. Rooms that need
/// each other in a circle stand together. Without an `order`, every module at the root is a room. The root is
/// left out, unless a room needs it.
pub fn floors(krate: &Crate, arrows: &[Arrow], order: Option<&Order>) -> Vec<Vec<Vec<String>>> {
    let at_root = Order { folder: krate.folder.clone(), rooms: rooms_at_root(krate) };
    let rooms = Rooms::of(krate, order.unwrap_or(&at_root), "", &mut Vec::new());
    let mut edges = vec![Vec::new(); rooms.all.len()];
    for arrow in arrows.iter().filter(|arrow| arrow.needs()) {
        if let (Some(from), Some(to)) = (rooms.of_file[arrow.from], rooms.of_file[arrow.to])
            && from != to
        {
            edges[from].push(to);
        }
    }
    let mut floor_of_room = vec![0; rooms.all.len()];
    let mut floors: Vec<Vec<Vec<String>>> = Vec::new();
    let root = rooms.all.len() - 1;
    for component in components(&edges).into_iter().filter(|component| *component != [root]) {
        let below = component.iter().flat_map(|room| &edges[*room]).filter(|room| !component.contains(room));
        let floor = below.map(|room| floor_of_room[*room] + 1).max().unwrap_or(0);
        component.iter().for_each(|room| floor_of_room[*room] = floor);
        floors.resize(floors.len().max(floor + 1), Vec::new());
        floors[floor].push(component.iter().map(|room| rooms.all[*room].name.clone()).collect());
    }
    floors.iter_mut().for_each(|floor| floor.sort());
    floors
}

fn rooms_at_root(krate: &Crate) -> Vec<Room> {
    let at_root = krate.modules.iter().filter(|module| module.parent == Some(0) && !module.test);
    let mut names: Vec<_> =
        at_root.filter(|module| module.file != 0).map(|module| module.name.clone()).collect();
    names.dedup();
    names.into_iter().map(|name| Room { name, layer: 0, line: 0 }).collect()
}

/// The circles of files, each in the order of their numbers.
fn circles(krate: &Crate, arrows: &[Arrow]) -> Vec<Vec<usize>> {
    let mut edges = vec![Vec::new(); krate.files.len()];
    for arrow in arrows.iter().filter(|arrow| arrow.needs()) {
        edges[arrow.from].push(arrow.to);
    }
    let mut circles = components(&edges);
    circles.retain(|circle| circle.len() > 1);
    circles
}

/// The rooms of a crate; the last one is the root.
struct Rooms {
    all: Vec<Room>,
    /// `None` for files of tests and where no room is stated.
    of_file: Vec<Option<usize>>,
}

impl Rooms {
    fn of(krate: &Crate, order: &Order, statement: &str, violations: &mut Vec<String>) -> Self {
        let mut all = order.rooms.clone();
        let top = all.iter().map(|room| room.layer + 1).max().unwrap_or(0);
        if let Some(lib) = all.iter().position(|room| room.name == "lib") {
            let lib = all.remove(lib);
            if lib.layer + 1 < top {
                violations.push(format!("{statement}:{}: `lib` is always the top", lib.line));
            }
        }
        all.push(Room { name: "lib".to_owned(), layer: top, line: 0 });
        for room in &all[..all.len() - 1] {
            let is_there = |module: usize| krate.path_of(module).join("/") == room.name;
            match krate.modules.iter().enumerate().find(|(index, module)| !module.test && is_there(*index)) {
                None => {
                    violations.push(format!(
                        "{statement}:{}: {} has no module `{}`",
                        room.line, krate.folder, room.name
                    ));
                }
                Some((_, module))
                    if module.parent.is_some_and(|parent| krate.modules[parent].file == module.file) =>
                {
                    violations.push(format!(
                        "{statement}:{}: the module `{}` has no file of its own",
                        room.line, room.name
                    ));
                }
                Some(_) => {}
            }
        }
        let mut rooms = Self { all, of_file: vec![None; krate.files.len()] };
        rooms.of_file[0] = Some(rooms.all.len() - 1);
        rooms.give_files(krate, violations);
        rooms
    }

    fn give_files(&mut self, krate: &Crate, violations: &mut Vec<String>) {
        for (index, module) in krate.modules.iter().enumerate() {
            let (file, path) = (module.file, krate.path_of(index));
            if module.test
                || file == 0
                || module.parent.is_some_and(|parent| krate.modules[parent].file == file)
            {
                continue;
            }
            let name = &krate.files[file];
            match self.room_of(&path) {
                None if path.len() == 1 => {
                    violations.push(format!("{name}:1: no layer is stated for the module `{}`", path[0]));
                }
                None => {}
                Some(room) => match self.of_file[file] {
                    Some(other) if other != room => {
                        let (other, room) = (&self.all[other].name, &self.all[room].name);
                        violations
                            .push(format!("{name}:1: the file belongs to two rooms, `{other}` and `{room}`"));
                    }
                    _ => self.of_file[file] = Some(room),
                },
            }
        }
    }

    /// The innermost room around a module.
    fn room_of(&self, path: &[&str]) -> Option<usize> {
        (1..=path.len()).rev().find_map(|names| {
            let name = path[..names].join("/");
            self.all.iter().position(|room| room.name == name)
        })
    }

    fn check_direction(&self, krate: &Crate, arrow: &Arrow, violations: &mut Vec<String>) {
        let (Some(from), Some(to)) = (self.of_file[arrow.from], self.of_file[arrow.to]) else { return };
        let (from, to) = (&self.all[from], &self.all[to]);
        if from.layer < to.layer {
            for place in &arrow.places {
                violations.push(format!(
                    "{}:{}: `{}` goes up: from {} (layer {}) to {} (layer {}), defined in {}",
                    krate.files[arrow.from],
                    place.line,
                    place.path,
                    from.name,
                    from.layer + 1,
                    to.name,
                    to.layer + 1,
                    krate.files[arrow.to],
                ));
            }
        }
    }

    fn check_circle(&self, krate: &Crate, arrows: &[Arrow], circle: &[usize], violations: &mut Vec<String>) {
        let mut wrong = Vec::new();
        if circle.len() > LARGEST_CIRCLE {
            wrong.push(format!("has more than {LARGEST_CIRCLE} files"));
        }
        if !self.share_a_folder(krate, circle) {
            wrong.push("is not within one folder of one room".to_owned());
        }
        if wrong.is_empty() {
            return;
        }
        let within: Vec<_> = arrows
            .iter()
            .filter(|arrow| arrow.needs() && circle.contains(&arrow.from) && circle.contains(&arrow.to))
            .collect();
        let mut text = format!(
            "{}:{}: a circle of {} files {}",
            krate.files[within[0].from],
            within[0].first().line,
            circle.len(),
            wrong.join(" and ")
        );
        for file in circle {
            let room = self.of_file[*file].map_or("no room", |room| self.all[room].name.as_str());
            write!(text, "\n    {} ({room})", krate.files[*file]).expect("text grows");
        }
        for arrow in within {
            write!(text, "\n      {}", krate.line(arrow)).expect("text grows");
        }
        violations.push(text);
    }

    /// Whether the files lie in one folder, which is a room or inside of one. `a.rs` also counts as a file of
    /// the folder `a`.
    fn share_a_folder(&self, krate: &Crate, circle: &[usize]) -> bool {
        let room = self.of_file[circle[0]];
        let one_room = room != self.of_file[0] && circle.iter().all(|file| self.of_file[*file] == room);
        let shared = folders_of(&krate.files[circle[0]]).into_iter().any(|folder| {
            folder != krate.folder
                && circle.iter().all(|file| folders_of(&krate.files[*file]).contains(&folder))
        });
        one_room && shared
    }
}

fn folders_of(file: &str) -> [&str; 2] {
    [file.rsplit_once('/').map_or("", |(folder, _)| folder), file.strip_suffix(".rs").unwrap_or(file)]
}

impl Crate {
    /// An arrow as one line of text.
    pub fn line(&self, arrow: &Arrow) -> String {
        let place = arrow.first();
        format!("{}:{}: {} -> {}", self.files[arrow.from], place.line, place.path, self.files[arrow.to])
    }
}
