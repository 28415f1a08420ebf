alter table pillarbox_relay drop column labels;
