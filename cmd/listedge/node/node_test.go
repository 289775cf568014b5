package node

import "testing"

// The admin listener answers to the host of --admin-listen, and to no other name.
func TestTheAdminListenerAnswersToTheNameThatItListensBy(t *testing.T) {
	names := adminNames(map[string]any{"admin-listen": "edge1.shop.example:9090"})
	if len(names) != 2 || names[0] != "edge1.shop.example" {
		t.Errorf("%v", names)
	}
	if names := adminNames(map[string]any{"admin-listen": ":9090"}); len(names) != 1 {
		t.Errorf("%v", names)
	}
}
