package list_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"listedge/internal/list"
)

// things is a list without mistakes. Tests change one of its lines.
const things = `lists:
  things:
    table: shop.things
    tenant: org
    key: id
    live: not gone
    fields:
      id:
      name: {min: 1}
      unitPrice: {as: decimal}
      madeAt:
    orders:
      madeAt: {descending: true}
      name: {fold: true}
    filters:
      kind: {big: size > 3, small: {keep: size <= 3, few: true}}
    search: [name]
`

// mistakesOf returns the lines of an error that must have FILE:LINE in front, without the file.
func mistakesOf(t *testing.T, err error) (lines []string) {
	t.Helper()
	var mistakes list.Mistakes
	if err != nil && !errors.As(err, &mistakes) {
		t.Fatalf("%T: %v", err, err)
	}
	for _, m := range mistakes {
		line, ok := strings.CutPrefix(m, "things.yaml:")
		if !ok || strings.Contains(line, "\n") {
			t.Errorf("%q does not say where", m)
		}
		lines = append(lines, line)
	}
	return lines
}

func expectMistakes(t *testing.T, err error, want string) {
	t.Helper()
	is := strings.Join(mistakesOf(t, err), "\n")
	if is != want {
		t.Errorf("\n%s\nwant\n%s", is, want)
	}
}

func TestMistakesOfADescription(t *testing.T) {
	replace := func(old, with string) string {
		if strings.Count(things, old) != 1 {
			panic(old)
		}
		return strings.Replace(things, old, with, 1)
	}
	many := func(n int, format string) (text string) {
		for i := range n {
			text += fmt.Sprintf(format, i)
		}
		return text
	}
	for name, test := range map[string]struct{ text, want string }{
		"none":      {things, ""},
		"no text":   {"", "1: there are no lists: write `lists:` and a list below it"},
		"a comment": {"# nothing\n", "1: there are no lists: write `lists:` and a list below it"},
		"no YAML": {"lists:\n  a: [b\n",
			"2: this is no YAML: sequence end token ']' not found"},
		"too long": {"#" + strings.Repeat("x", list.MaxDescription),
			"1: the file has 1048577 bytes: write at most 1048576"},
		"two documents": {things + "---\nlists:\n",
			"18: there is a second document: write one, without ---"},
		"a text": {"lists",
			"1: a description must be a mapping: write `name: value` below it"},
		"a list of lists": {"lists: [a, b]\n",
			"1: `lists` must be a mapping: write `name: value` below it"},
		"lists are empty": {"lists: {}\n",
			"1: there are no lists: write `lists:` and a list below it"},
		"a list is a text": {"lists: {things: shop.things}\n",
			"1: a list must be a mapping: write `name: value` below it"},
		"unknown key": {"title: Shop\nlist:\n  things:\n",
			`2: a description has no "list": write one of about, lists, title`},
		"unknown key of a list": {replace("    live:", "    alive:"),
			`6: a list has no "alive": write one of about, fields, filters, key, live, orders, row, search, table, tenant, title`},
		"unknown key of a field": {replace("{min: 1}", "{minimum: 1}"),
			`9: a field has no "minimum": write one of about, as, column, enum, example, max, min`},
		"unknown key of an order": {replace("{fold: true}", "{folded: true}"),
			`14: an order has no "folded": write one of about, by, descending, fold`},
		"unknown key of a value": {replace("few: true", "fewer: true"),
			`16: a value of a filter has no "fewer": write one of few, keep`},
		"a key twice": {replace("    key: id\n", "    key: id\n    key: name\n"),
			`6: "key" stands twice in a list, first in line 5: remove one`},
		"a list twice": {things + "  things: {}\n",
			"18: \"things\" stands twice in `lists`, first in line 2: remove one"},
		"a field twice": {replace("      madeAt:\n    orders", "      name:\n    orders"),
			"11: \"name\" stands twice in `fields`, first in line 9: remove one"},
		"an anchor": {replace("key: id", "key: &id id"),
			"5: key must be a text: write it in one piece, without anchors and tags"},
		"an alias": {replace("key: id", "key: *id"),
			"5: key must be a text: write it in one piece, without anchors and tags"},
		"a tag": {replace("key: id", "key: !!str id"),
			"5: key must be a text: write it in one piece, without anchors and tags"},
		"a merge": {replace("    key: id\n", "    <<: {key: id}\n"),
			"2: the list things has no key: write `key:` and the column that tells its rows apart\n" +
				"5: this is no name: write it out, without anchors, tags and <<"},
		"name of a list": {replace("  things:\n    table", "  Things:\n    table"),
			`2: a list cannot be named "Things": write a small letter and at most 31 more, digits and -`},
		"a list that metrics call so": {replace("  things:\n    table", "  docs:\n    table"),
			"2: a list cannot be named docs, which metrics call something else: write another name"},
		"name of a field": {replace("      unitPrice:", "      unit-price:"),
			`10: a field cannot be named "unit-price": write letters, digits and _, at most 63, and no digit first`},
		"name of an order": {replace("name: {fold", "\"by name\": {by: name, fold"),
			`14: an order cannot be named "by name": write a letter and at most 62 more, digits, _ and -`},
		"name of a filter": {replace("      kind:", "      \"kind[]\":"),
			`16: a filter cannot be named "kind[]": write a letter and at most 62 more, digits, _ and -`},
		"a filter that is a parameter": {replace("      kind:", "      sort:"),
			"16: a filter cannot be named sort, which is a parameter of every list: write another name"},
		"name of a value": {replace("big:", "\"so big\":"),
			`16: a value of a filter cannot be named "so big": write a letter and at most 62 more, digits, _ and -`},
		"the value all": {replace("big:", "all:"),
			"16: the filter kind has the value all, which every filter has: leave it out"},
		"a filter without values": {replace("{big: size > 3, small: {keep: size <= 3, few: true}}", "{}"),
			"16: the filter kind has no value: write a name and its condition"},
		"a value without condition": {replace("keep: size <= 3, ", ""),
			"16: the value small keeps nothing: write `keep:` and a condition"},
		"an empty condition": {replace("live: not gone", "live:"),
			"6: live is empty: write a value, or leave it out"},
		"a condition that is none": {replace("not gone", "gone or lost"),
			"6: live: conditions have no or; write a value of the filter for each alternative, or a column that a trigger fills"},
		"table without a name": {replace("shop.things", "shop."),
			`3: "shop." is no table: write schema.table, and "…" around a name with dots`},
		"table with three names": {replace("shop.things", "db.shop.things"),
			`3: "db.shop.things" is no table: write schema.table, and "…" around a name with dots`},
		"no key": {replace("    key: id\n", ""),
			"2: the list things has no key: write `key:` and the column that tells its rows apart"},
		"no fields": {replace("    fields:\n      id:\n      name: {min: 1}\n      unitPrice: {as: decimal}\n      madeAt:\n", ""),
			"2: the list things has no fields: write `fields:` and the columns that clients see"},
		"no orders": {replace("    orders:\n      madeAt: {descending: true}\n      name: {fold: true}\n", ""),
			"2: the list things has no orders: write `orders:` with at least one, such as `createdAt: {descending: true}`"},
		"a number that is none": {replace("{min: 1}", "{min: one, max: 0x10}"),
			"9: min is \"one\": write a number in digits\n" +
				"9: max is \"0x10\": write a number in digits"},
		"a flag that is none": {replace("{descending: true}", "{descending: yes}"),
			"13: descending must be true or false"},
		"search is no list": {replace("[name]", "name"),
			"17: search must be a list: write [one, two]"},
		"a field is searched twice": {replace("[name]", "[name, name]"),
			`17: search has "name" twice: remove one`},
		"an empty enum": {replace("{min: 1}", "{enum: []}"),
			"9: enum must be a list: write [one, two]"},
		"a text of several values": {replace("key: id", "key: [id]"),
			"5: key must be a text: write it in one piece, without anchors and tags"},
		"too many lists": {"lists:\n" + many(65, "  l%d: {key: a, fields: {a: }, orders: {a: }}\n"),
			"66: there are 65 lists: write at most 64"},
		"too many fields": {replace("      id:\n", "      id:\n"+many(97, "      f%d:\n")),
			"2: the list things has 101 fields: write at most 100"},
		"too many orders": {replace("      name: {fold: true}\n", many(8, "      o%d: {by: name}\n")),
			"2: the list things has 9 orders: write at most 8"},
		"too many values": {replace("{big:", "{"+many(63, "v%d: a, ")+"big:"),
			"2: the list things has 65 values of filters: write at most 64"},
		"too many searched": {replace("[name]", "[name, "+many(8, "f%d, ")+"]"),
			"2: the list things has 9 searched fields: write at most 8"},
		"all at once": {strings.NewReplacer("key: id", "keys: id", "min: 1", "min: x", "descending", "down", "few: true", "few: 1").Replace(things),
			"2: the list things has no key: write `key:` and the column that tells its rows apart\n" +
				"5: a list has no \"keys\": write one of about, fields, filters, key, live, orders, row, search, table, tenant, title\n" +
				"9: min is \"x\": write a number in digits\n" +
				"13: an order has no \"down\": write one of about, by, descending, fold\n" +
				"16: few must be true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := list.Parse("things.yaml", []byte(test.text))
			if (d == nil) != (err != nil) {
				t.Errorf("%v, %v", d, err)
			}
			expectMistakes(t, err, test.want)
		})
	}
}

// FuzzADescription parses and resolves what looks like a description: it may be wrong, and says where.
func FuzzADescription(f *testing.F) {
	f.Add(things)
	f.Add("lists: {a: {key: id, fields: {a: {enum: [x]}}, orders: {a: {}}}}")
	f.Add("lists:\n  ? [a]\n  : b\n")
	f.Add("%YAML 1.2\n--- !!map\n&a lists: *a\n")
	f.Add("lists: |\n  things\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := list.Parse("things.yaml", []byte(text))
		if err == nil {
			_, err = d.Resolve(&list.Catalogue{Relations: []list.Relation{relation()}})
		}
		if err != nil && len(mistakesOf(t, err)) == 0 {
			t.Errorf("%v", err)
		}
	})
}
