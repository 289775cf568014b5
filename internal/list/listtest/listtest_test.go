package listtest

import (
	"testing"

	"listedge/internal/list"
)

func TestNamesAreThoseOfTheLists(t *testing.T) {
	bits := map[string]uint64{"items stock tracked": Tracked, "items stock low": Low, "items type goods": Goods, "items type services": Services,
		"contacts type customer": Customers, "contacts type supplier": Suppliers}
	for _, l := range []*list.List{Items, Contacts} {
		if l.Orders[ByCreatedAt].Name != "createdAt" || l.Orders[ByName].Name != "name" {
			t.Errorf("the orders of %s are %v", l.Name, l.Orders)
		}
		for _, f := range l.Filters {
			for _, v := range f.Values {
				name := l.Name + " " + f.Name + " " + v.Name
				if bits[name] != v.Bit {
					t.Errorf("%s is %b, want %b", name, v.Bit, bits[name])
				}
				delete(bits, name)
			}
		}
	}
	if len(bits) > 0 {
		t.Errorf("no list has %v", bits)
	}
}
