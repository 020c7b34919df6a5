package collector

import "gdr_exporter/collector/snapshot"

// Families about the reading itself.
var (
	scrapeSuccess = gauge("gdr_scrape_collector_success",
		"1 if the collector could list what it reads. Single values that could not be read are counted in gdr_read_errors_total.")
	scrapeDuration = gauge("gdr_scrape_collector_duration_seconds",
		"How long the collector's last read took, up to the scrape's deadline.")
	scrapeAge = gauge("gdr_scrape_collector_timestamp_seconds",
		"Unix time at which the collector's values were read: scrapes that follow closely share one read.")
	readErrors = counter("gdr_read_errors_total",
		"Values that could not be read since start, by device, port, source (file) and errno (no_pma: no performance management; invalid: not of the file's form).")
	readStuck = gauge("gdr_device_read_stuck",
		"1 while reading the device has not returned by the scrape's deadline. Its other values are missing meanwhile, and it is not read again until the hanging read returns.")
	readDuration = gauge("gdr_device_read_duration_seconds",
		"How long the last read of the device took.")
)

// scrapeView shows how reading went.
func scrapeView(p *page, s *snapshot.Snapshot) {
	for _, status := range s.Status() {
		collector := pairs("collector", status.Collector)
		p.addBool(scrapeSuccess, status.Err == nil, collector)
		p.add(scrapeDuration, status.Duration.Seconds(), collector)
		p.add(scrapeAge, float64(status.Taken.UnixMilli())/1000, collector)
		for _, device := range status.Devices {
			labels := pairs("collector", status.Collector, "device", device.Name)
			p.addBool(readStuck, device.StuckFor > 0, labels)
			if device.StuckFor == 0 {
				p.add(readDuration, device.Duration.Seconds(), labels)
			}
		}
	}
	for _, e := range s.Errors {
		p.add(readErrors, float64(e.Count), pairs("collector", e.Collector, "device", e.Device,
			"port", e.Port, "source", e.Source, "errno", e.Errno))
	}
}
