//! The order that ARCHITECTURE.md states.

/// The layers of one crate, lowest first.
#[derive(Debug)]
pub struct Order {
    /// The folder of the crate's sources, such as `core/src`.
    pub folder: String,
    /// Rooms and the layer of each, counted from 0, in the order of the text.
    pub rooms: Vec<Room>,
}

/// A module that has a layer of its own.
#[derive(Clone, Debug)]
pub struct Room {
    /// Its path below the crate's root, such as `codecs/topk`.
    pub name: String,
    /// 0 is the lowest.
    pub layer: usize,
    /// The line that names it.
    pub line: usize,
}

impl Order {
    /// The blocks of a Markdown text that are fenced with `layers FOLDER`.
    ///
    /// # Errors
    /// A sentence that begins with the number of the line, if a block is empty, has no folder, never ends or
    /// is the second one of its folder, or if a room is named twice.
    pub fn all(text: &str) -> Result<Vec<Self>, String> {
        let mut orders: Vec<Self> = Vec::new();
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        while let Some((line, info)) = lines.by_ref().find_map(opening_fence) {
            let Some(info) =
                info.strip_prefix("layers").filter(|rest| rest.is_empty() || rest.starts_with(' '))
            else {
                lines.by_ref().find(|(_, line)| line.trim() == "```");
                continue;
            };
            let folder = info.trim().trim_end_matches('/').to_owned();
            if folder.is_empty() {
                return Err(format!("{line}: the block of layers names no folder"));
            }
            if orders.iter().any(|order| order.folder == folder) {
                return Err(format!("{line}: the layers of {folder} are stated twice"));
            }
            let rooms = rooms_of_block(line, &mut lines)?;
            orders.push(Self { folder, rooms });
        }
        Ok(orders)
    }
}

fn opening_fence((number, line): (usize, &str)) -> Option<(usize, &str)> {
    line.strip_prefix("```").map(|info| (number, info.trim()))
}

fn rooms_of_block<'a>(
    opening: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<Vec<Room>, String> {
    let mut rooms: Vec<Room> = Vec::new();
    let mut layer = 0;
    for (number, line) in lines {
        let line = line.trim();
        if line == "```" {
            return if rooms.is_empty() {
                Err(format!("{opening}: the block names no room"))
            } else {
                Ok(rooms)
            };
        }
        let names = line.split_once("  ").map_or(line, |(names, _comment)| names);
        for name in names.split(' ').filter(|name| !name.is_empty()) {
            if rooms.iter().any(|room| room.name == name) {
                return Err(format!("{number}: the room `{name}` is named twice"));
            }
            rooms.push(Room { name: name.to_owned(), layer, line: number });
        }
        layer += usize::from(!names.is_empty());
    }
    Err(format!("{opening}: the block never ends"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read() {
        let text = "# Title\n```\nlayers no/src\n```\n```layers a/src\nerror key   what callers name\nkey/parts\n\nwire\n```\n";
        let orders = Order::all(text).unwrap();
        assert_eq!(orders.len(), 1);
        assert_eq!(orders[0].folder, "a/src");
        let rooms: Vec<_> =
            orders[0].rooms.iter().map(|room| (room.name.as_str(), room.layer, room.line)).collect();
        assert_eq!(rooms, [("error", 0, 6), ("key", 0, 6), ("key/parts", 1, 7), ("wire", 2, 9)]);
    }

    #[test]
    fn a_block_that_says_nothing_is_refused() {
        for (text, error) in [
            ("```layers\na\n```", "1: the block of layers names no folder"),
            ("```layers a\n```", "1: the block names no room"),
            ("```layers a\nx", "1: the block never ends"),
            ("```layers a\nx\ny x\n```", "3: the room `x` is named twice"),
            ("```layers a\nx\n```\n```layers a/\nx\n```", "4: the layers of a are stated twice"),
        ] {
            assert_eq!(Order::all(text).unwrap_err(), error);
        }
    }
}
