module example.com/leasehold

go 1.19
