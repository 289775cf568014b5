package main

import (
	"fmt"
	"testing"
)

func TestZZ(t *testing.T) {
	designs = designs[:1]
	found := simulateAll()
	for _, c := range chapters {
		fmt.Println(c.title)
		for _, sc := range c.scenarios {
			for _, l := range heldTo {
				row := fmt.Sprintf("  %-22s %-12s", sc.load, l)
				for _, column := range columns {
					row += " | "
					for i, n := range c.nodes {
						if i > 0 {
							row += " / "
						}
						row += column.text(found[cell{c.title, sc.load, l, n, designs[0].name}])
					}
				}
				fmt.Println(row)
			}
		}
	}
}
