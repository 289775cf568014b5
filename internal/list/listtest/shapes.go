package listtest

import (
	"embed"
	"strconv"
	"strings"

	"listedge/internal/list"
)

// Shape is a table that is not ours, and the description of its list.
type Shape struct {
	Name string // of the list
	SQL  string // makes the table
	List string // the list in a description, below `lists:`

	rows string
}

// Shapes are tables as other programs have them: of two shops, one that is partitioned, those of Odoo (partners), Saleor
// (users) and Medusa (customers), and one with types and names of all sorts. Those with a tenant have the tenants 0, 1
// and 2, but for partners (1, 2, 3 and NULL) and lines (a, b "c", d).
var Shapes = shapes("products", "people", "events", "partners", "users", "customers", "lines")

//go:embed shapes
var files embed.FS

func shapes(names ...string) (all []Shape) {
	for _, name := range names {
		sql, err := files.ReadFile("shapes/" + name + ".sql")
		if err != nil {
			panic(err)
		}
		lists, err := files.ReadFile("shapes/" + name + ".yaml")
		if err != nil {
			panic(err)
		}
		make, rows, _ := strings.Cut(string(sql), "-- rows\n")
		all = append(all, Shape{name, make, string(lists), rows})
	}
	return all
}

// ShapeOf returns the shape of a list.
func ShapeOf(name string) Shape {
	for _, s := range Shapes {
		if s.Name == name {
			return s
		}
	}
	panic("there is no shape " + name)
}

// Rows returns SQL that inserts rows with the numbers from…to.
func (s Shape) Rows(from, to int) string {
	return strings.NewReplacer("$from", strconv.Itoa(from), "$to", strconv.Itoa(to)).Replace(s.rows)
}

// Description returns the description of the lists of shapes.
func Description(shapes ...Shape) *list.Description {
	d, err := list.Parse("lists.yaml", []byte(DescriptionText(shapes...)))
	if err != nil {
		panic(err)
	}
	return d
}

// DescriptionText returns it as a file has it.
func DescriptionText(shapes ...Shape) string {
	text := "lists:\n"
	for _, s := range shapes {
		text += s.List
	}
	return text
}
