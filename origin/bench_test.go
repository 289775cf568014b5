package origin

import (
	"fmt"
	"testing"
)

// BenchmarkWriter is one INSERT, and one row of an UPDATE of all names: the processor time
// that the server spends on them, by the script of the texts. (On Linux.)
func BenchmarkWriter(b *testing.B) {
	conn := connect(b, newDatabase(b))
	for _, text := range []string{"Masala chai organic", "Thé glacé à la pêche", "Чай чёрный листовой", "宇治抹茶東京限定品質", "참기름 바라 한국어", "น้ำมันมะพร้าวสกัด", "मसाला चाय विशेष"} {
		b.Run(text, func(b *testing.B) {
			spent := func(sql string) float64 {
				var before, after int64 // nanoseconds
				for _, at := range []*int64{&before, &after} {
					must(conn.QueryRow(b.Context(), "SELECT split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::bigint").Scan(at))
					if at == &before {
						exec(b, conn, sql)
					}
				}
				return float64(after-before) / float64(b.N) / 1e3
			}
			exec(b, conn, "TRUNCATE items")
			b.ReportMetric(spent(fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
				INSERT INTO items (workspace_id, name, sku, description) VALUES (uuid_in(md5((n %% 5)::text)::cstring), '%s' || md5(n::text), 'SKU-' || n, '%[2]s box of ' || n);
			END LOOP; END $$`, b.N, text)), "µs/INSERT")
			b.ReportMetric(spent("UPDATE items SET name = name || 'x'"), "µs/UPDATE")
		})
	}
}
